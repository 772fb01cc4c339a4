"""From one element a thread to clusters: what each idea buys in a GEMM of 4096 (and 8192) cubed, bf16.

    python3 benches/ladder.py build DIR             # here: block programs to PTX
    python3 benches/ladder.py run DIR FIGURES.json  # on a CUDA machine: checked against PyTorch, timed interleaved with cuBLAS
    python3 benches/ladder.py report FIGURES.json   # writes benches/results/ladder.md and ladder.svg

Every step is a block program of benches/ladder/ and the passes it goes through; from the wgmma step on the programs say only
`for k { load; load; dot }`; SwiGLU is a dual GEMM: two matmuls that share their left operand.
"""

import ctypes
import datetime
import json
import os
import statistics
import subprocess
import sys

# (what is added, program, passes), by problem.
STEPS = {
    "4096": [
        ("one element a thread", "one_element", ""),
        ("tiles in registers", "registers", ""),
        ("tiles in shared memory", "shared", ""),
        ("tensor cores (mma)", "tensor_cores", ""),
        ("tensor maps and wgmma", "wgmma", ""),
        ("warp specialisation, a ring of stages", "descriptors", "roles"),
        ("persistent blocks", "descriptors", "persistent,roles"),
        ("clusters of two", "descriptors", "clusters,roles"),
        ("the same from pointer loads", "pointers", "warpgroups"),
    ],
    "8192": [
        ("8192: clusters of two", "descriptors_8192", "clusters,roles"),
        ("8192: from pointer loads", "pointers_8192", "warpgroups"),
    ],
    "swiglu": [("SwiGLU as dual GEMM", "swiglu", "warpgroups")],
}


def problem(name):
    """Inputs, what PyTorch computes, and the operations of it."""
    import torch
    import torch.nn.functional as F

    if name == "swiglu":
        m, n, k = 8192, 16384, 4096
        shapes, work = [(m, k), (n, k), (n, k)], 4 * m * n * k
        function = lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u)
    else:
        n = int(name)
        shapes, work, function = [(n, n), (n, n)], 2 * n**3, torch.mm
    return [torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in shapes], function, work


def named(program, passes):
    return "-".join([program] + [p for p in passes.split(",") if p])


def build(folder):
    jobs = [f"benches/ladder/{program}.block" + (f":{passes}" if passes else "") for steps in STEPS.values() for _, program, passes in steps]
    command = ["cargo", "run", "--release", "-p", "kiln-codegen", "--example", "block_ptx", "--", folder]
    subprocess.run(command + jobs, check=True)


class Attribute(ctypes.Structure):
    """Number 4: blocks in a cluster, along each axis."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint)]
    _fields_ += [("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint)]


class Program:
    """A kernel loaded through the driver, launched on a stream of PyTorch."""

    def __init__(self, folder, name, buffers):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        with open(os.path.join(folder, f"{name}.json")) as f:
            self.launch = json.load(f)
        with open(os.path.join(folder, f"{name}.ptx"), "rb") as f:
            text = f.read() + b"\0"
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(self.module), text))
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(self.function), self.module, self.launch["name"].encode()))
        # 8: the most dynamic shared memory.
        self.check(self.cuda.cuFuncSetAttribute(self.function, 8, self.launch["shared"]))
        self.values = [self.argument(a, b) for a, b in zip(self.launch["args"], buffers)]
        self.args = (ctypes.c_void_p * len(self.values))(*[ctypes.addressof(v) for v in self.values])

    def check(self, code):
        if code:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{self.launch['name']}: {code} {text.value}")

    def argument(self, argument, buffer):
        if argument == "address":
            return ctypes.c_uint64(buffer.data_ptr())
        m = argument["map"]
        array = m["array"]
        rank = len(array["sizes"])
        width = {"bf16": 2, "f16": 2, "f32": 4}[m["elem"]]
        kind = {"bf16": 9, "f16": 6, "f32": 7}[m["elem"]]
        swizzle = {0: 0, 32: 1, 64: 2, 128: 3}[m["swizzle"]]
        raw = (ctypes.c_uint8 * 192)()
        start = (ctypes.addressof(raw) + 63) // 64 * 64
        sizes = (ctypes.c_uint64 * rank)(*array["sizes"][::-1])
        strides = (ctypes.c_uint64 * rank)(*[s * width for s in array["strides"][-2::-1]])
        box = (ctypes.c_uint32 * rank)(*m["tile"][::-1])
        ones = (ctypes.c_uint32 * rank)(*[1] * rank)
        base = ctypes.c_void_p(buffer.data_ptr() + array["offset"] * width)
        encode = self.cuda.cuTensorMapEncodeTiled
        # No interleaving, promotion to 256 bytes of L2, zeros outside.
        self.check(encode(ctypes.c_void_p(start), kind, rank, base, sizes, strides, box, ones, 0, swizzle, 3, 0))
        value = (ctypes.c_uint8 * 128).from_address(start)
        value.keep = raw
        return value

    def __call__(self):
        import torch

        launch, one = self.launch, Attribute(4, 0, (self.launch["cluster"], 1, 1))
        config = Config(tuple(launch["grid"]), (launch["threads"], 1, 1), launch["shared"])
        config.stream = torch.cuda.current_stream().cuda_stream
        config.attributes, config.count = ctypes.pointer(one), int(launch["cluster"] > 1)
        self.check(self.cuda.cuLaunchKernelEx(ctypes.byref(config), self.function, self.args, None))


def milliseconds(work):
    """A CUDA graph of as many calls as take some milliseconds, the median of its replays."""
    import torch

    def once(action):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        action()
        b.record()
        b.synchronize()
        return a.elapsed_time(b)

    work()
    torch.cuda.synchronize()
    calls = max(1, min(20, int(8 / once(work))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            work()
    times = [once(graph.replay) / calls for _ in range(7)]
    return statistics.median(times[1:])


def run(folder, out):
    import torch

    torch.manual_seed(1)
    figures = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": str(datetime.date.today()), "rows": []}
    for name, programs in STEPS.items():
        inputs, function, work = problem(name)
        want = function(*[x.double() for x in inputs])
        off = lambda c: ((c.double() - want).norm() / want.norm()).item()
        own = off(function(*inputs))
        steps = []
        for title, program, passes in programs:
            c = torch.full(want.shape, float("nan"), device="cuda", dtype=torch.bfloat16)
            p = Program(folder, named(program, passes), [*inputs, c])
            p()
            torch.cuda.synchronize()
            error, again = off(c), c.clone()
            p()
            torch.cuda.synchronize()
            assert error < 1.1 * own, f"{title}: error {error}, eager's {own}"
            assert torch.equal(c, again), f"{title}: two runs differ"
            steps.append(({"step": title, "program": program, "passes": passes, "work": work, "error": error, "eager_error": own}, p, [], []))
        del want
        for _ in range(5):
            for _, p, ours, theirs in steps:
                ours.append(milliseconds(p))
                theirs.append(milliseconds(lambda: function(*inputs)))
        for row, _, ours, theirs in steps:
            row["ms"], row["eager_ms"] = statistics.median(ours), statistics.median(theirs)
            figures["rows"].append(row)
            print(f"{row['step']:32} {row['ms']:9.3f} ms {work / row['ms'] / 1e9:7.1f} TFLOP/s  eager {row['eager_ms']:7.3f}  ratio {row['eager_ms'] / row['ms']:.3f}  error {row['error']:.2e} ({own:.2e})", flush=True)
        del inputs, steps
        torch.cuda.empty_cache()
    with open(out, "w") as f:
        json.dump(figures, f, indent=1)


# Colours for readers who asked for dark pages.
DARK = """<style>@media (prefers-color-scheme: dark) {[fill="white"]{fill:#14171b}text{fill:#e6e9ec}[fill="#3b75af"]{fill:#6ea8e0}[stroke="#c03a2b"]{stroke:#ff7f6e}}</style>"""


def chart(rows):
    """Bars of TFLOP/s, one a step, with cuBLAS as a line through those of its size."""
    left, top, bar, gap, wide = 230, 34, 20, 8, 520
    rate = lambda r, key: r["work"] / r[key] / 1e9
    most = max(max(rate(r, "ms"), rate(r, "eager_ms")) for r in rows) * 1.05
    x = lambda v: left + wide * v / most
    height = top + len(rows) * (bar + gap) + 26
    text = 'font-family="sans-serif" font-size="12"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 90}" height="{height}">', DARK, '<rect width="100%" height="100%" fill="white"/>']
    out.append(f'<text x="{left}" y="18" {text}>TFLOP/s of a bf16 GEMM of 4096 cubed (or as named); the line is PyTorch (cuBLAS) in the same run</text>')
    for i, r in enumerate(rows):
        y = top + i * (bar + gap)
        value, peer = rate(r, "ms"), rate(r, "eager_ms")
        out.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end" {text}>{r["step"]}</text>')
        out.append(f'<rect x="{left}" y="{y}" width="{x(value) - left:.1f}" height="{bar}" fill="#3b75af"/>')
        out.append(f'<line x1="{x(peer):.1f}" y1="{y - gap / 2}" x2="{x(peer):.1f}" y2="{y + bar + gap / 2}" stroke="#c03a2b" stroke-width="2"/>')
        out.append(f'<text x="{max(x(value), x(peer) if value > 0.8 * peer else 0) + 6:.1f}" y="{y + 14}" {text}>{value:.0f}</text>' if value >= 10 else f'<text x="{x(value) + 6:.1f}" y="{y + 14}" {text}>{value:.1f}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def report(path):
    with open(path) as f:
        figures = json.load(f)
    rows = figures["rows"]
    with open("benches/results/ladder.svg", "w") as f:
        f.write(chart(rows))
    lines = [
        "# The ladder of a GEMM on an H200",
        "",
        f"{figures['device']}; torch {figures['torch']}; {figures['date']}. `benches/ladder.py`: programs of `benches/ladder/` in bf16 with f32 accumulators, launches in CUDA",
        "graphs, medians of five rounds interleaved with PyTorch eager (cuBLAS), random normal data. Every result is within 1.1 times the",
        "error of eager's against float64, and two runs give equal bytes. Clocks fall while the GPU warms: compare within a row.",
        "",
        "![The ladder](ladder.svg)",
        "",
        "| step | program | passes | ms | TFLOP/s | eager ms | eager / step |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        cells = [r["step"], r["program"], r["passes"], f"{r['ms']:.3f}", f"{r['work'] / r['ms'] / 1e9:.1f}", f"{r['eager_ms']:.3f}", f"{r['eager_ms'] / r['ms']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    with open("benches/results/ladder.md", "w") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    {"build": build, "run": run, "report": report}[sys.argv[1]](*sys.argv[2:])
