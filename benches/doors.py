#!/usr/bin/env python3
"""The same model through every door: torch.compile, kiln.compile, `.pt2` in three forms, TorchScript. Results and plans are compared.

    python benches/doors.py [--examples] [--libraries] [--device cuda] [--jobs N] [--seconds N] [--kiln PATH] [--doors a,b] [--json FILE]
                            [NAME]...

Without names: --examples takes what scripts/export-models exports, --libraries the models of benches/library_models.py. Each model runs in a
process of its own, on the CPU or, by --device, on a GPU (without TorchScript). A result is right if it is as near to float64 as eager's, within a factor of two, or equal to eager's within a
few units of rounding, or to what torch's own graph of that door gives, which is then said. Plans are compared by kind and operators of their kernels. --kiln: the binary, for TorchScript; without it, that door is
left out. Exits with 1 if a result is wrong or a process crashes; a refusal is listed with its sentence.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOORS = ["torch.compile", "kiln.compile", "functional", "training", "core", "torchscript"]
#: The largest difference from eager, over the largest value, that is rounding whatever float64 says.
ROUNDING = {"torch.float32": 2e-6, "torch.float64": 1e-14, "torch.float16": 2e-3, "torch.bfloat16": 1.6e-2}


def names(examples: bool, libraries: bool) -> list[str]:
    sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "benches")]
    found = []
    if examples:
        from example_models import EXAMPLES

        found += ["example:" + n for n in EXAMPLES]
    if libraries:
        from library_models import MODELS

        found += ["library:" + n for n in MODELS]
    return found


def build(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The model with all weights random: what is 0 or 1 when it is made would hide errors."""
    import torch

    kind, _, short = name.partition(":")
    names(kind == "example", kind == "library")
    torch.manual_seed(0)
    if kind == "example":
        from example_models import EXAMPLES

        module, args = EXAMPLES[short].build()
        module, args, kwargs = module.eval(), tuple(args), {}
    else:
        from library_models import MODELS

        module, args, kwargs = MODELS[short]()
        module = module.eval()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.is_floating_point() and (parameter.numel() == 1 or float(parameter.std()) == 0):
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            for key, buffer in module.named_buffers():
                if key.endswith("running_mean"):
                    buffer.copy_(torch.randn_like(buffer) * 0.1)
                if key.endswith("running_var"):
                    buffer.copy_(torch.rand_like(buffer) * 0.5 + 0.75)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module, args, kwargs


def tensors(tree: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree

    return [x for x in _pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    import torch
    from torch.utils import _pytree

    return _pytree.tree_map_only(torch.Tensor, change, tree)


class Model:
    """A model, its inputs, and what eager and float64 give."""

    def __init__(self, name: str, device: str) -> None:
        import torch

        module, args, kwargs = build(name)
        # Eager's own rounding is what Kiln's is measured by, so it is not TF32's.
        torch.backends.cudnn.allow_tf32 = False
        self.module, self.args, self.kwargs = module.to(device), *mapped((args, kwargs), lambda t: t.to(device))
        self.want = tensors(self.run(self.module))
        self._exact: list[Any] | None = None
        self.exported: Any = None
        torch.manual_seed(0)

    def run(self, f: Callable[..., Any]) -> Any:
        import torch

        with torch.no_grad():
            # Copies, as models may write to their inputs.
            return f(*mapped(self.args, lambda t: t.clone()), **mapped(self.kwargs, lambda t: t.clone()))

    def exact(self) -> list[Any]:
        import torch

        if self._exact is None:
            wide = lambda t: t.double() if t.is_floating_point() else t.clone()  # noqa: E731
            module = copy.deepcopy(self.module).double()
            with torch.no_grad():
                self._exact = tensors(module(*mapped(self.args, wide), **mapped(self.kwargs, wide)))
        return self._exact

    def compare(self, got: list[Any]) -> tuple[str, float]:
        """Nothing or what is wrong, and the largest difference from eager over the largest value."""
        import torch

        if len(got) != len(self.want):
            return f"{len(got)} results for {len(self.want)}", 0.0
        worst = 0.0
        for i, (a, b) in enumerate(zip(got, self.want, strict=True)):
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"result {i} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}", worst
            if not b.is_floating_point() or b.numel() == 0:
                if not torch.equal(a, b):
                    return f"result {i} differs in {int((a != b).sum())} of {b.numel()}", worst
                continue
            x, y = a.double(), b.double()
            if not torch.equal(x.isfinite(), y.isfinite()):
                return f"result {i} is finite in other places", worst
            finite = y.isfinite()
            if not finite.any():
                continue
            x, y = x[finite], y[finite]
            scale = float(y.abs().max()) or 1.0
            difference = float((x - y).abs().max()) / scale
            worst = max(worst, difference)
            if difference > ROUNDING.get(str(b.dtype), 0.25):
                z = self.exact()[i].double()[finite]
                ours, eager = (float((t - z).abs().max()) / scale for t in (x, y))
                if ours > 2 * eager:
                    return f"result {i}: {ours:.1e} from float64, eager {eager:.1e}", worst
        return "", worst


def plan(kernels: list[tuple[str, list[str]]]) -> list[str]:
    """A plan, as far as two doors can agree on it: kinds and operators of kernels, in no order."""
    return sorted(f"{kind}({', '.join(sorted(nodes))})" for kind, nodes in kernels)


def of_report(report: Any) -> dict[str, Any]:
    eager = [str(p) for p in report.eager]
    return {"plan": plan([(k.kind, k.nodes) for k in report.kernels]), "fallbacks": [str(f) for f in report.fallbacks], "eager": eager}


def without_kiln(door: str, m: Model) -> Callable[..., Any]:
    """What torch itself makes of the model on the way to a door: it has graphs that differ from eager."""
    import torch

    if door == "torch.compile":
        return torch.compile(m.module, backend="aot_eager", dynamic=False)
    exported = torch.export.export(m.module, m.args, m.kwargs, strict=False)
    table = {"functional": [{}], "core": []}.get(door)
    return (exported if table is None else exported.run_decompositions(*table)).module()


def torch_compile(m: Model) -> dict[str, Any]:
    import kiln
    import torch

    f = torch.compile(m.module, backend="kiln", dynamic=False)
    results = [tensors(m.run(f)) for _ in range(2)]
    torch._dynamo.reset()
    with torch.no_grad():
        report = kiln.explain(m.module, *mapped(m.args, lambda t: t.clone()), **mapped(m.kwargs, lambda t: t.clone()))
    return {"results": results, **of_report(report)}


def kiln_compile(m: Model) -> dict[str, Any]:
    import kiln
    import torch

    with torch.no_grad():
        f = kiln.compile(m.module, m.kwargs or m.args)
    results = [tensors(m.run(f)) for _ in range(2)]
    return {"results": results, **of_report(f.explain())}


def archive(form: str) -> Callable[[Model], dict[str, Any]]:
    def door(m: Model) -> dict[str, Any]:
        import kiln
        import torch

        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            if m.exported is None:
                m.exported = torch.export.export(m.module, m.args, m.kwargs, strict=False)
            program = {"training": lambda e: e, "functional": lambda e: e.run_decompositions({}), "core": lambda e: e.run_decompositions()}
            path = os.path.join(folder, "model.pt2")
            torch.export.save(program[form](m.exported), path)
            f = kiln.load(path)
            results = [tensors(m.run(f))]
            return {"results": results, **of_report(f.explain())}

    return door


def torchscript(m: Model, binary: str) -> dict[str, Any]:
    import torch
    from safetensors.torch import load_file, save_file
    from torch.utils import _pytree

    leaves, spec = _pytree.tree_flatten((m.args, m.kwargs))

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = m.module

        def forward(self, *given: Any) -> Any:
            rest = iter(given)
            args, kwargs = _pytree.tree_unflatten([next(rest) if torch.is_tensor(x) else x for x in leaves], spec)
            return tuple(tensors(self.module(*args, **kwargs)))

    given = [x.clone() for x in leaves if torch.is_tensor(x)]
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        torch.jit.trace(Flat().eval(), tuple(given), check_trace=False, strict=False).save(folder + "/model.pt")
        save_file({str(i): x.contiguous() for i, x in enumerate(given)}, folder + "/in.safetensors")
        common = [folder + "/model.pt", "--inputs", folder + "/in.safetensors"]
        for command in (["run", *common, "--outputs", folder + "/out.safetensors"], ["explain", *common, "--json", folder + "/plan.json"]):
            libtorch = {"LIBTORCH": os.path.dirname(torch.__file__), **os.environ}
            done = subprocess.run([binary, *command], capture_output=True, text=True, timeout=300, env=libtorch)
            if done.returncode != 0:
                raise RuntimeError(done.stderr.strip())
        out = load_file(folder + "/out.safetensors")
        found = json.loads(Path(folder + "/plan.json").read_text())
    kernels = plan([(k["kind"], k["nodes"]) for k in found["kernels"]])
    return {"results": [[out[str(i)] for i in range(len(out))]], "plan": kernels, "fallbacks": found.get("fallbacks", []), "eager": []}


def equal(a: Any, b: Any) -> bool:
    import torch

    limit = ROUNDING.get(str(b.dtype), 0.0)
    return a.shape == b.shape and bool(torch.allclose(a, b, rtol=limit, atol=limit, equal_nan=True))


def try_model(name: str, doors: list[str], binary: str | None, device: str) -> dict[str, Any]:
    import torch

    warnings.filterwarnings("ignore")
    try:
        model = Model(name, device)
    except ImportError as e:
        return {"name": name, "missing": str(e)}
    ways: dict[str, Callable[[Model], dict[str, Any]]] = {"torch.compile": torch_compile, "kiln.compile": kiln_compile}
    ways |= {form: archive(form) for form in ("functional", "training", "core")}
    if binary:
        ways["torchscript"] = lambda m: torchscript(m, binary)
    record: dict[str, Any] = {"name": name, "doors": {}}
    for door in doors:
        if door not in ways:
            continue
        start = time.perf_counter()
        try:
            found = ways[door](model)
        except Exception as e:  # What a door refuses, or torch itself.
            record["doors"][door] = {"refused": f"{type(e).__name__}: {str(e)[:1500]}"}
            continue
        results = found.pop("results")
        verdicts = [model.compare(r) for r in results]
        wrong = next((w for w, _ in verdicts if w), "")
        if wrong and door != "torchscript":
            with torch.no_grad():
                theirs = tensors(model.run(without_kiln(door, model)))
            if all(equal(a, b) for r in results for a, b in zip(r, theirs, strict=True)):
                found["torch_itself"], wrong = wrong, ""
        seconds = round(time.perf_counter() - start, 2)
        record["doors"][door] = {"wrong": wrong, "difference": max(d for _, d in verdicts), "seconds": seconds, **found}
    return record


def cell(found: dict[str, Any]) -> str:
    if "refused" in found:
        return "refused"
    text = f"**wrong: {found['wrong']}**" if found["wrong"] else f"{found['difference']:.0e}"
    if "torch_itself" in found:
        text = "as torch's own graph, which is not eager's"
    return text + "".join(f" {len(found[k])} {k}" for k in ("fallbacks", "eager") if found[k])


def compared(doors: dict[str, Any]) -> str:
    """Kernels by door, most first."""
    plans = collections.defaultdict(list)
    for door, found in doors.items():
        if "plan" in found:
            plans[tuple(found["plan"])].append(door)
    if len(plans) == 1:
        return f"{len(next(iter(plans)))}, the same"
    return "; ".join(f"{len(p)}: {', '.join(d)}" for p, d in sorted(plans.items(), key=lambda i: -len(i[1])))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--examples", action="store_true")
    parser.add_argument("--libraries", action="store_true")
    parser.add_argument("--doors", default=",".join(DOORS))
    parser.add_argument("--kiln")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument("--seconds", type=float, default=600, help="the most for a model")
    parser.add_argument("--json", type=Path, help="append one line for each model")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    doors = args.doors.split(",")
    if args.one:
        print("RECORD " + json.dumps(try_model(args.names[0], doors, args.kiln, args.device)))
        return 0
    bad = 0
    refusals: list[str] = []
    print("| model | " + " | ".join(doors) + " | kernels |")
    print("|---" * (len(doors) + 2) + "|")
    common = [sys.executable, __file__, "--one", "--doors", args.doors, "--device", args.device, *(["--kiln", args.kiln] if args.kiln else [])]

    def in_process(name: str) -> dict[str, Any]:
        try:
            done = subprocess.run([*common, name], capture_output=True, text=True, timeout=args.seconds)
        except subprocess.TimeoutExpired:
            return {"name": name, "crash": f"more than {args.seconds} s"}
        lines = [line for line in done.stdout.splitlines() if line.startswith("RECORD ")]
        return json.loads(lines[-1][7:]) if lines else {"name": name, "crash": f"exit {done.returncode}: {done.stderr[-1500:]}"}

    for record in ThreadPoolExecutor(args.jobs).map(in_process, args.names or names(args.examples, args.libraries)):
        if args.json:
            with args.json.open("a") as file:
                file.write(json.dumps(record) + "\n")
        short = record["name"].partition(":")[2]
        if "doors" not in record:
            reason = record.get("crash") or "not installed: " + record["missing"]
            bad += "crash" in record
            print(f"| {short} | {reason.strip().splitlines()[-1]} |", flush=True)
            continue
        found = record["doors"]
        bad += sum(1 for d in found.values() if d.get("wrong"))
        refusals += [f"{short}, {door}: {d['refused']}" for door, d in found.items() if "refused" in d]
        print(f"| {short} | " + " | ".join(cell(found[d]) if d in found else "" for d in doors) + f" | {compared(found)} |", flush=True)
    if refusals:
        print("\nRefused:\n")
        for text in refusals:
            print("- " + text.replace("\n", "\n  "))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
