#!/usr/bin/env python3
"""Times of the Python package on one GPU, beside eager PyTorch and Inductor in the same process.

    python benches/front_door.py [calls] [cold] [lengths] [decode] [generate]        default: all
    taskset -c 0-3 python benches/front_door.py cold --peers none                     how the stages take to fewer cores

calls:    microseconds of the host for a call, beyond which kernels take their own time
cold:     seconds from a module to its first result, by stage: each model in a new process, with the driver's cache of assembled code
          off, and again in the same process
lengths:  BERT at 30 sequence lengths: total of compiling, and milliseconds at each length
decode:   a Llama of the shape of Llama-3.2-1B in bf16 with random weights: milliseconds a token by tokens in the cache
generate: the same model, whole texts by Compiled.generate and by generate of transformers; and whether its tokens are eager's in f32

Medians. The wheel must be installed (scripts/wheel).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn

START = time.perf_counter()
import kiln  # noqa: E402

#: Seconds that the package took to import, torch apart.
IMPORTED = time.perf_counter() - START

warnings.filterwarnings("ignore")
DEVICE = "cuda"


def milliseconds(run: Callable[[], object], rounds: int = 30, each: int = 1) -> float:
    """The median time of the device for a call."""
    for _ in range(3):
        run()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(each):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / each)
    return statistics.median(times)


def host_microseconds(run: Callable[[], object], rounds: int = 15, each: int = 50) -> float:
    """The median time of the host for a call. The device is idle before each round, and its work is short."""
    for _ in range(10):
        run()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(each):
            run()
        times.append((time.perf_counter() - start) / each * 1e6)
    return statistics.median(times)


def fresh() -> None:
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def calls() -> None:
    x = torch.randn(16, 64, device=DEVICE)
    mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to(DEVICE).eval()
    deep = nn.Sequential(*[nn.Linear(64, 64) for _ in range(100)]).to(DEVICE).eval()
    print("\n## Calls: microseconds of the host\n")
    print("| module | kiln.compile | CUDA graph alone | torch.compile, kiln | the same, backend eager | eager |")
    print("|---|---|---|---|---|---|")
    for name, module in [("x + 1", lambda a: a + 1), ("MLP, 4 parameters", mlp), ("100 linears, 200 parameters", deep)]:
        fresh()
        row = []
        if isinstance(module, nn.Module):
            compiled = kiln.compile(module, (x,))
            row.append(host_microseconds(lambda: compiled(x)))
            for _ in range(3):
                compiled(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                compiled(x)
            row.append(host_microseconds(graph.replay))
        else:
            row += [float("nan")] * 2
        for backend in ("kiln", "eager"):
            torch._dynamo.reset()
            run = torch.compile(module, backend=backend)
            row.append(host_microseconds(lambda: run(x)))
        row.append(host_microseconds(lambda: module(x)))
        print(f"| {name} | " + " | ".join(f"{us:.1f}" for us in row) + " |", flush=True)


def models() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    from torchvision import models as vision
    from transformers import BertConfig, BertModel

    image = torch.randn(1, 3, 224, 224, device=DEVICE)
    return {
        "BERT base": (BertModel(BertConfig()), (torch.randint(0, 30000, (1, 128), device=DEVICE),)),
        "ResNet-50": (vision.resnet50(), (image,)),
        "Swin-T": (vision.swin_t(), (image,)),
    }


def first_tensor(result: object) -> torch.Tensor:
    if isinstance(result, torch.Tensor):
        return result
    return first_tensor(next(iter(result.values() if isinstance(result, dict) else result)))  # type: ignore[call-overload]


#: Stages of `kiln.compile` and its first call, in order. The driver assembles PTX within `codegen`, while code of other kernels is generated.
STAGES = ["import", "program", "specialise", "plan", "lower", "codegen", "load", "first call"]


def cold(peers: bool = True) -> None:
    print("\n## Cold: seconds to the first result, by stage\n")
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores; the driver's and Inductor's caches are off. Sum: all stages but export, which is PyTorch's. Threads: seconds of all")
    print("threads that generated and assembled code.\n")
    columns = ["export", "functional", *STAGES, "sum", "threads: generating", "assembling"]
    print("| model | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    totals = []
    for name in ("BERT base", "ResNet-50", "Swin-T"):
        command = [sys.executable, __file__, "cold-one", "--model", name, *([] if peers else ["--peers", "none"])]
        off = {"CUDA_CACHE_DISABLE": "1", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
        done = subprocess.run(command, env={**os.environ, **off}, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"| {name}: {done.stderr.strip().splitlines()[-1]} |")
            continue
        found = json.loads(done.stdout.strip().splitlines()[-1])
        for which in ("new process", "again"):
            row = found[which]
            print(f"| {name}, {which} | " + " | ".join(f"{row[c]:.3f}" for c in columns) + " |", flush=True)
        totals.append((name, found["totals"]))
    print("\n| model | torch.compile, kiln | of it Kiln and the driver | Inductor | kiln ms | eager ms | Inductor ms | max difference |")
    print("|---" * 8 + "|")
    for name, t in totals:
        seconds = [t["torch.compile"], t["of it kiln"], t.get("inductor", float("nan"))]
        times = [t["kiln ms"], t["eager ms"], t.get("inductor ms", float("nan"))]
        numbers = [f"{x:.2f}" for x in seconds] + [f"{x:.3f}" for x in times]
        print(f"| {name} | " + " | ".join(numbers) + f" | {t['difference']:.1e} |", flush=True)


def cold_one(name: str, imported: float, peers: bool) -> None:
    """Compiles one model and prints what `cold` shows, as JSON."""
    module, args = models()[name]
    module = module.to(DEVICE).eval()
    found: dict[str, dict[str, float]] = {}
    # PyTorch's own first use of the GPU, such as loading its libraries, is not part of what is timed.
    want = first_tensor(module(*args)).clone()
    torch.cuda.synchronize()
    for which in ("new process", "again"):
        fresh()
        start = time.perf_counter()
        program = torch.export.export(module, args).run_decompositions({})
        exported = time.perf_counter() - start
        # What the package imports at its first use. Of PyTorch the export has imported it all.
        start = time.perf_counter()
        make = kiln.compile
        imported += time.perf_counter() - start
        # Compiles for the example inputs.
        compiled = make(program)
        binding = compiled.bindings()[-1]
        start = time.perf_counter()
        got = first_tensor(compiled(*args))
        torch.cuda.synchronize()
        called = time.perf_counter() - start
        row = {**compiled.timings, "export": exported, "import": imported, "first call": called}
        imported = 0.0
        threads = binding["threads"]
        found[which] = {
            **row, **threads, "threads: generating": threads["generating"],
            "sum": row["functional"] + sum(row[stage] for stage in STAGES),
        }
    totals = found["totals"] = {"difference": (got - want).abs().max().item()}
    totals["kiln ms"] = milliseconds(lambda: compiled(*args))
    totals["eager ms"] = milliseconds(lambda: module(*args))
    del compiled, program
    fresh()
    start = time.perf_counter()
    run = torch.compile(module, backend="kiln")
    run(*args)
    torch.cuda.synchronize()
    totals["torch.compile"] = time.perf_counter() - start
    from kiln import pieces

    bindings = [b for piece in pieces.live() for engine in piece.engines for b in engine.bindings()]
    totals["of it kiln"] = sum(b["compile_s"] for b in bindings)
    if peers:
        fresh()
        start = time.perf_counter()
        inductor = torch.compile(module)
        inductor(*args)
        torch.cuda.synchronize()
        totals["inductor"] = time.perf_counter() - start
        totals["inductor ms"] = milliseconds(lambda: inductor(*args))
    print(json.dumps(found))


def lengths(count: int = 30) -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    module = BertModel(BertConfig()).to(DEVICE).eval()
    all_lengths = sorted(torch.randperm(480)[:count].add(16).tolist())
    inputs = {n: torch.randint(0, 30000, (1, n), device=DEVICE) for n in all_lengths}
    torch._dynamo.config.recompile_limit = 64
    print(f"\n## BERT base at {count} lengths from {all_lengths[0]} to {all_lengths[-1]}\n")
    print("| | compile, s | sum over lengths, ms | slowest against static Kiln |")
    print("|---|---|---|---|")
    static: dict[int, float] = {}
    fresh()
    for n in all_lengths[::6]:
        alone = kiln.compile(module, (inputs[n],))
        static[n] = milliseconds(lambda: alone(inputs[n]))
        del alone
    ids = {"input_ids": {1: torch.export.Dim("n", min=2, max=512)}}
    dynamic = lambda: kiln.compile(module, (inputs[all_lengths[0]],), dynamic=ids)  # noqa: E731
    sides = {
        "kiln.compile, dynamic": dynamic,
        "torch.compile, kiln, dynamic": lambda: torch.compile(module, backend="kiln", dynamic=True),
        "Inductor, dynamic=True": lambda: torch.compile(module, dynamic=True),
        "Inductor, dynamic=False": lambda: torch.compile(module, dynamic=False),
        "eager": lambda: module,
    }
    for name, make in sides.items():
        fresh()
        start = time.perf_counter()
        run = make()
        for n in all_lengths:
            run(inputs[n])
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        times = {n: milliseconds(lambda: run(inputs[n]), rounds=10) for n in all_lengths}
        ratio = max(times[n] / static[n] for n in static)
        print(f"| {name} | {first:.1f} | {sum(times.values()):.2f} | {ratio:.2f} |", flush=True)
        del run


def llama(layers: int, dtype: torch.dtype) -> nn.Module:
    """A model of the shape of Llama-3.2-1B with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=16384, tie_word_embeddings=True, rope_theta=500000.0,
        # Large enough for the texts not to repeat one token.
        initializer_range=0.1,
    )
    with torch.device(DEVICE):
        torch.set_default_dtype(dtype)
        module = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    return module


def decode(layers: int = 16) -> None:
    from transformers import StaticCache

    module = llama(layers, torch.bfloat16)
    config = module.config
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    copy = torch.empty(1 << 28, device=DEVICE), torch.empty(1 << 28, device=DEVICE)
    speed = 2 * copy[0].numel() * 4 / milliseconds(lambda: copy[1].copy_(copy[0])) / 1e6
    del copy
    print(f"\n## Decoding, Llama-3.2-1B's shape in bf16, batch 1, {layers} layers; copies run at {speed:.0f} GB/s\n")
    print("| tokens in the cache | floor ms | kiln ms | eager ms | Inductor ms | Inductor with CUDA graphs ms | logits: max difference from eager |")
    print("|---|---|---|---|---|---|---|")
    token = torch.tensor([[5]], device=DEVICE)
    for tokens in (128, 1024, 8192):
        fresh()
        cache = StaticCache(config=config, max_cache_len=tokens + 64)
        place = torch.tensor([tokens], device=DEVICE)
        step = lambda: module(input_ids=token, position_ids=place[None], past_key_values=cache, use_cache=True).logits  # noqa: E731
        # The cache is filled by a prefill of random tokens.
        ids = torch.randint(0, 1000, (1, tokens), device=DEVICE)
        module(input_ids=ids, past_key_values=cache, use_cache=True)
        kept = 2 * layers * tokens * 8 * 64 * 2
        floor = (weights + kept) / speed / 1e6
        def again() -> torch.Tensor:
            for layer in cache.layers:
                if hasattr(layer, "cumulative_length"):
                    layer.cumulative_length.fill_(tokens)
            return step()
        want = again().float()
        row = []
        difference = float("nan")
        for backend, mode in (("kiln", None), (None, None), ("inductor", None), ("inductor", "reduce-overhead")):
            fresh()
            try:
                forward = module.forward if backend is None else torch.compile(module.forward, backend=backend, mode=mode)
                one = lambda: forward(input_ids=token, position_ids=place[None], past_key_values=cache, use_cache=True).logits  # noqa: B023,E731
                def run() -> torch.Tensor:
                    for layer in cache.layers:
                        if hasattr(layer, "cumulative_length"):
                            layer.cumulative_length.fill_(tokens)
                    return one()
                got = run().float()
                if backend == "kiln":
                    difference = (got - want).abs().max().item()
                for _ in range(3):
                    run()
                row.append(milliseconds(one, rounds=10, each=4))
            except Exception as e:  # noqa: BLE001
                print(f"{backend} {mode}: {type(e).__name__}: {str(e)[:300]}")
                row.append(float("nan"))
        print(f"| {tokens} | {floor:.3f} | " + " | ".join(f"{ms:.3f}" for ms in row) + f" | {difference:.3f} |", flush=True)


def seconds(run: Callable[[], object], rounds: int = 5) -> float:
    """The median time of a call and its work on the device."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def generators(module: nn.Module, length: int) -> dict[str, Callable[[], Callable[[torch.Tensor, int], torch.Tensor]]]:
    """Ways to make texts of at most so many tokens: a prompt and a number of new tokens."""
    from transformers import CompileConfig

    def transformers(**more: object) -> Callable[[torch.Tensor, int], torch.Tensor]:
        return lambda ids, new: module.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, eos_token_id=None, **more
        )

    def static(**config: object) -> Callable[[torch.Tensor, int], torch.Tensor]:
        return transformers(cache_implementation="static", compile_config=CompileConfig(**config))

    def own() -> Callable[[torch.Tensor, int], torch.Tensor]:
        compiled = kiln.compile(module, max_length=length)
        return lambda ids, new: compiled.generate(ids, new, eos=())

    return {
        "Compiled.generate": own,
        "generate, kiln": lambda: static(backend="kiln", fullgraph=True, dynamic=None),
        "generate, Inductor with CUDA graphs": static,
        "generate, eager": transformers,
    }


def generate(layers: int = 16) -> None:
    few, many = 33, 161
    print(f"\n## Texts, Llama-3.2-1B's shape, batch 1, {layers} layers, {many} new tokens\n")
    print("First: the first text, compilation too. Read: reading the prompt and making the first token.\n")
    print("| tokens of the prompt | | first s | read ms | ms a token | tokens/s |")
    print("|---|---|---|---|---|---|")
    module = llama(layers, torch.bfloat16)
    for tokens in (128, 1000, 8000):
        ids = torch.randint(3, 1000, (1, tokens), device=DEVICE)
        for name, make in generators(module, tokens + many).items():
            fresh()
            try:
                run = make()
                first = seconds(lambda: run(ids, many), rounds=1)  # noqa: B023
                # Other caches of transformers are other programs: only this number of new tokens is compiled.
                for count in (1, few):
                    run(ids, count)
                read, short, long = (seconds(lambda: run(ids, n)) for n in (1, few, many))  # noqa: B023
                each = (long - short) / (many - few)
                print(f"| {tokens} | {name} | {first:.1f} | {read * 1e3:.1f} | {each * 1e3:.3f} | {1 / each:.0f} |", flush=True)
                del run
            except Exception as e:  # noqa: BLE001
                print(f"| {tokens} | {name}: {type(e).__name__}: {str(e)[:200]} | | | | |", flush=True)
    del module
    fresh()
    module = llama(layers, torch.float32)
    for tokens in (1, 7, 75, 1000):
        ids = torch.randint(3, 1000, (1, tokens), device=DEVICE)
        sides = generators(module, tokens + many)
        got, want = (sides[name]()(ids, many) for name in ("Compiled.generate", "generate, eager"))
        same = (got == want)[0].long().cumprod(0).sum().item() - tokens
        different = want[0, tokens:].unique().numel()
        print(f"f32, prompt of {tokens}: the first {same} of {many} tokens are eager's ({different} different ones)", flush=True)
        end = int(want[0, tokens + many // 2])
        compiled = kiln.compile(module, max_length=tokens + many)
        got = compiled.generate(ids, many, eos=end)
        ended = module.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=many, do_sample=False, eos_token_id=end)  # type: ignore[operator]
        print(f"    ended by a token: {'the same' if torch.equal(got, ended) else 'another'} text of {got.shape[1]} tokens", flush=True)
        fresh()


def main() -> None:
    parts = {"calls": calls, "cold": cold, "lengths": lengths, "decode": decode, "generate": generate}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", choices=[*parts, "cold-one", []], default=list(parts))
    parser.add_argument("--peers", choices=["all", "none"], default="all", help="of `cold`: whether Inductor is timed")
    parser.add_argument("--model", help=argparse.SUPPRESS)
    args = parser.parse_args()
    peers = args.peers == "all"
    with torch.no_grad():
        if args.part == ["cold-one"]:
            cold_one(args.model, IMPORTED, peers)
            return
        device = torch.cuda.get_device_properties(0)
        print(f"# The Python package: {device.name}, torch {torch.__version__}, kiln {kiln.__version__}, {time.strftime('%Y-%m-%d')}")
        for part in args.part or parts:
            cold(peers) if part == "cold" else parts[part]()


if __name__ == "__main__":
    main()
