#!/usr/bin/env python3
"""Runs Triton's own tests of its language on Kiln, by an alias of the modules' names.

    benches/triton_tests.py CHECKOUT [--device cpu] [--json OUT.json] [--files core standard …] [-k EXPR]

CHECKOUT is a copy of Triton's repository. Cases are counted by file: passed; refused by name
(`KernelUnsupported`); wrong (a result that differs, or another error); looking inside the compiler,
which are left out; skipped by the tests themselves.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import types
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

FILES = (
    "annotations block_pointer compile_errors conversions core decorator frontend libdevice matmul "
    "random standard tensor_descriptor tuple"
).split()


class LooksInsideError(Exception):
    """A test asks for what only Triton's compiler has."""


class Inside(types.ModuleType):
    """A module of Triton's compiler: whatever is asked of it."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("Error") or name.endswith("Failure"):
            return type(name, (LooksInsideError,), {})

        def inside(*args: Any, **kwargs: Any) -> Any:
            raise LooksInsideError(f"{self.__name__}.{name}")

        return inside


class Target:
    """What tests ask of the current machine."""

    def __init__(self, device: str) -> None:
        self.backend = device
        self.arch = 90
        self.warp_size = 32


def alias(checkout: Path, device: str) -> None:
    """Gives Kiln's modules Triton's names."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.init()
    import kiln.kernels
    import kiln.language
    import kiln.testing
    from kiln.kernels import errors

    triton = types.ModuleType("triton")
    triton.__path__ = []  # type: ignore[attr-defined]
    for name in dir(kiln.kernels):
        if not name.startswith("_"):
            setattr(triton, name, getattr(kiln.kernels, name))
    triton.language, triton.testing = kiln.language, kiln.testing
    triton.__version__ = "3.7.0"
    triton.CompilationError = triton.TritonError = errors.KilnError
    triton.language.str_to_ty = lambda name, _: kiln.language.dtype(name)
    canonical = {
        name: str(getattr(kiln.language, name))
        for name in kiln.language.__all__
        if isinstance(getattr(kiln.language, name), kiln.language.dtype)
    }
    canonical |= {"bool": "int1", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}
    triton.must_use_result = lambda fn: fn
    triton.aggregate = triton.language.aggregate = lambda cls: cls
    active = types.SimpleNamespace(
        get_current_target=lambda: Target(device),
        get_current_device=lambda: 0,
        get_active_torch_device=lambda: device,
        utils=types.SimpleNamespace(get_device_properties=lambda d: {"max_shared_mem": 232448}),
    )
    modules: dict[str, types.ModuleType] = {"triton": triton}

    def module(name: str, **content: Any) -> None:
        found = modules.setdefault(name, Inside(name))
        for key, value in content.items():
            setattr(found, key, value)

    module("triton.runtime")
    module("triton.runtime.driver", active=active)
    module("triton.runtime.errors", OutOfResources=errors.OutOfResources, InterpreterError=errors.KernelError)
    module(
        "triton.runtime.jit",
        TensorWrapper=kiln.kernels._Reinterpreted,
        reinterpret=kiln.kernels.reinterpret,
        type_canonicalisation_dict=canonical,
        JITFunction=kiln.kernels.Kernel,
        MockTensor=kiln.kernels.MockTensor,
    )
    module("triton.compiler")
    module(
        "triton.compiler.errors",
        CompilationError=errors.KilnError,
        CompileTimeAssertionFailure=errors.KernelError,
        UnsupportedLanguageConstruct=errors.KernelUnsupported,
    )
    module("triton.compiler.code_generator")
    module("triton.backends")
    module("triton.backends.compiler")
    knobs = Inside("triton.knobs")
    knobs.base_knobs = type("base_knobs", (), {})
    knobs.nvidia = types.SimpleNamespace(ptxas=types.SimpleNamespace(version="13.0"))
    modules["triton.knobs"] = knobs
    for name in ("triton._filecheck", "triton._C", "triton._C.libtriton", "triton.tools", "triton.tools.mxfp",
                 "triton.experimental", "triton.experimental.gluon"):  # fmt: skip
        module(name)
    module("triton.tools.tensor_descriptor", TensorDescriptor=getattr(kiln.kernels, "TensorDescriptor", None))
    for name in ("", ".core", ".math", ".standard", ".random", ".extra", ".extra.libdevice", ".extra.cuda"):
        modules["triton.language" + name] = importlib.import_module("kiln.language" + name)
    for name, found in modules.items():
        sys.modules[name] = found
        parent, _, last = name.rpartition(".")
        if parent and parent in modules and not parent.startswith("triton.language"):
            setattr(modules[parent], last, found)
    path = checkout / "python/triton/_internal_testing.py"
    spec = importlib.util.spec_from_file_location("triton._internal_testing", path)
    assert spec is not None and spec.loader is not None
    testing = importlib.util.module_from_spec(spec)
    sys.modules["triton._internal_testing"] = testing
    spec.loader.exec_module(testing)


class Counts:
    """What became of each case, of every `of`-th one from `first` on."""

    def __init__(self, first: int, of: int) -> None:
        self.first, self.of = first, of
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, Counter[str]] = defaultdict(Counter)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = items[self.first :: self.of]

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        outcome = self.outcomes.get(item.nodeid)
        if call.excinfo is None:
            if call.when == "call":
                self.outcomes[item.nodeid] = "passed"
            return
        if call.when == "teardown" and outcome is not None:
            return
        outcome, reason = classified(call.excinfo.value)
        self.outcomes[item.nodeid] = outcome
        self.reasons[outcome][reason] += 1

    def merge(self, found: dict[str, Any]) -> None:
        """Adds what another process counted."""
        self.outcomes.update(found["outcomes"])
        for outcome, reasons in found["reasons"].items():
            self.reasons[outcome].update(reasons)

    def table(self) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for node, outcome in self.outcomes.items():
            found[Path(node.partition("::")[0]).stem][outcome] += 1
        return found


#: What is in messages of tests that compare generated code, or ask for stages of Triton's compiler.
CODE = ("Generated by LLVM", ".headerflags", "; the stages are", "declare void @kiln_")


def classified(error: BaseException) -> tuple[str, str]:
    """What kind of end this is, and why."""
    import pytest
    from kiln.kernels.errors import KernelUnsupported

    at: BaseException | None = error
    while at is not None:
        if isinstance(at, (pytest.skip.Exception, pytest.xfail.Exception)):
            return "skipped", str(at)
        launched = isinstance(at, AttributeError) and "Launched" in str(at)
        if isinstance(at, LooksInsideError) or launched or any(s in str(at) for s in CODE):
            return "inside", str(at)[:80]
        if isinstance(at, KernelUnsupported):
            return "refused", str(at).partition("\n")[0][:120]
        at = at.__cause__ or at.__context__
    return "wrong", f"{type(error).__name__}: {str(error).partition(chr(10))[0][:110]}"


def fixtures(device: str) -> Any:
    """What the tests' own settings give them."""
    import pytest

    class Fixtures:
        @pytest.fixture(name="device")
        def device(self) -> str:
            return device

        @pytest.fixture
        def fresh_triton_cache(self, tmp_path: Any) -> str:
            return str(tmp_path)

        @pytest.fixture
        def fresh_knobs(self) -> Any:
            raise LooksInsideError("knobs")

        @pytest.fixture
        def with_allocator(self) -> None:
            return None

    return Fixtures()


def here(args: argparse.Namespace, counts: Counts) -> None:
    """Runs the cases in this process."""
    import pytest

    alias(args.checkout, args.device)
    folder = args.checkout / "python/test/unit/language"
    files = [str(folder / f"test_{name}.py") for name in args.files]
    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--no-header"]
    options += ["--tb=line", "-W", "ignore", *(["-k", args.k] if args.k else [])]
    pytest.main([*options, *files], plugins=[counts, fixtures(args.device)])


def in_parts(args: argparse.Namespace, counts: Counts) -> None:
    """Runs the cases in several processes; those of one that ends early are missing, and said."""
    with tempfile.TemporaryDirectory() as folder:
        parts = [Path(folder) / f"{n}.json" for n in range(args.jobs)]
        command = [sys.executable, __file__, *sys.argv[1:], "--reasons", "0"]
        running = [
            subprocess.Popen(
                [*command, "--part", f"{n}/{args.jobs * args.sample}", "--json", str(part)], stdout=subprocess.DEVNULL
            )
            for n, part in enumerate(parts)
        ]
        for n, (process, part) in enumerate(zip(running, parts, strict=True)):
            status = process.wait()
            if part.exists():
                counts.merge(json.loads(part.read_text()))
            else:
                print(f"part {n} of {args.jobs} ended with status {status}: its cases are not counted")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, action="append", default=[])
    parser.add_argument("--files", nargs="*", default=list(FILES))
    parser.add_argument("-k", default="")
    parser.add_argument("--reasons", type=int, action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sample", type=int, default=1, help="with --jobs: every n-th case")
    parser.add_argument("--part", default="")
    args = parser.parse_args()
    first, _, of = (args.part or "0/1").partition("/")
    counts = Counts(int(first), int(of))
    if args.jobs > 1 and not args.part:
        in_parts(args, counts)
    else:
        here(args, counts)
    table = counts.table()
    names = ["passed", "refused", "wrong", "inside", "skipped"]
    print(f"{'file':24}" + "".join(f"{n:>9}" for n in names))
    for file, row in sorted(table.items()):
        print(f"{file:24}" + "".join(f"{row[n]:9}" for n in names))
    total: Counter[str] = sum(table.values(), Counter())
    print(f"{'all':24}" + "".join(f"{total[n]:9}" for n in names))
    for outcome in ("wrong", "refused"):
        for reason, n in counts.reasons[outcome].most_common((args.reasons or [20])[-1]):
            print(f"{outcome:8} {n:6} {reason}")
    for path in args.json[-1:]:
        found = {"table": table, "outcomes": counts.outcomes, "reasons": counts.reasons}
        path.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
