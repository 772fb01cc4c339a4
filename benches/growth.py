"""How the time to compile grows with the graph: families of graphs, wide and deep, compiled at growing sizes.

    python3 benches/growth.py --kiln target/release/kiln [--sizes 50,100,...] [--families NAME,...] [--targets cpu,sm_90a]
                              [--limit SECONDS] [--out benches/results/growth.md] [--plot benches/results/growth.svg]
    python3 benches/growth.py --write FOLDER --sizes 500     # only writes the graphs

Each point is one run of `kiln compile` on a text graph. Times are processor time of the whole process (user and system), which a busy
machine disturbs less than the clock; the stages are by the clock, from `compile --json`. The exponent is the slope of a straight line
through the logarithms of time and size, over the sizes of at least 500 nodes. `nodes` are the graph's values, operands of
concatenations counted too, since a dense network has as many as the square of its layers.
"""
import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time

SIZES = [50, 100, 200, 500, 1000, 2000, 5000]


class Graph:
    """Lines of a text graph."""

    def __init__(self, name, inputs):
        self.name, self.inputs, self.params, self.lines, self.next, self.operands = name, inputs, [], [], 0, 0

    def param(self, ty, scale="0.1"):
        self.params.append(f"  @p{len(self.params)}: {ty} = random(seed={len(self.params)}, scale={scale})")
        return f"@p{len(self.params) - 1}"

    def op(self, op, *args, attributes=""):
        v = f"%v{self.next}"
        self.next += 1
        self.operands += len(args)
        self.lines.append(f"  {v} = {op} {', '.join(args)}{' ' if attributes else ''}{attributes}")
        return v

    def text(self, outputs):
        inputs = ", ".join(f"{n}: {t}" for n, t in self.inputs)
        body = "\n".join(self.params + self.lines)
        return f"graph {self.name}({inputs}) {{\n{body}\n  return {', '.join(outputs)}\n}}\n"

    @property
    def size(self):
        return self.next + max(0, self.operands - 2 * self.next)


def wide_concat(n):
    """Rows of a matrix, an `exp` of each, concatenated again."""
    k = max(1, n // 3)
    g = Graph("wide_concat", [("%x", f"f32[{k},64]")])
    parts = []
    for i in range(k):
        row = g.op("slice", "%x", attributes=f"axis=0 start={i} len=1 step=1")
        parts.append(g.op("exp", g.op("reshape", row, attributes="shape=[64]")))
    return g, [g.op("concat", *parts, attributes="axis=0")]


def chain(n):
    """Pointwise ops one after another."""
    g = Graph("chain", [("%x", "f32[4096]"), ("%y", "f32[4096]")])
    v = "%x"
    for i in range(n):
        v = [lambda: g.op("tanh", v), lambda: g.op("add", v, "%y"), lambda: g.op("mul", v, "%y")][i % 3]()
    return g, [v]


def dense(n):
    """A dense network: each layer (norm, ReLU, convolution) reads the concatenation of all before it."""
    # With k layers there are k * k / 2 operands of concatenations.
    layers = max(2, int(math.sqrt(2 * n + 25) - 5))
    g = Graph("dense", [("%x", "f32[1,4,8,8]")])
    parts = ["%x"]
    for i in range(layers):
        c = 4 * len(parts)
        v = g.op("concat", *parts, attributes="axis=1") if len(parts) > 1 else parts[0]
        gain, rest = g.param(f"f32[{c}]", "1.0"), g.param(f"f32[{c}]", "1.0")
        w = g.param(f"f32[4,{c},3,3]")
        v = g.op("batch_norm", v, gain, rest, rest, gain, attributes="eps=1e-5")
        v = g.op("relu", v)
        v = g.op("conv", v, w, attributes="stride=[1,1] padding=[1,1] dilation=[1,1] groups=1 transposed=false output_padding=[0,0]")
        parts.append(v)
    return g, [g.op("reduce.mean", parts[-1], attributes="axes=[2,3]")]


def outputs(n):
    """Independent ops on two inputs, each a result."""
    g = Graph("outputs", [("%x", "f32[4096]"), ("%y", "f32[4096]")])
    return g, [g.op("exp", g.op("mul", "%x", f"{1 + i / 1024}")) for i in range(max(1, n // 2))]


def users(n):
    """One value with as many users, each a result."""
    g = Graph("users", [("%x", "f32[4096]")])
    y = g.op("exp", "%x")
    return g, [g.op("add", y, f"{1 + i / 1024}") for i in range(n - 1)]


def inputs(n):
    """Many inputs, added up one by one."""
    k = max(2, n // 2)
    g = Graph("inputs", [(f"%x{i}", "f32[1024]") for i in range(k)])
    v = "%x0"
    for i in range(1, k):
        v = g.op("add", v, g.op("tanh", f"%x{i}"))
    return g, [v]


def tree(n):
    """Rows of a matrix, added up in pairs."""
    k = max(2, n // 2)
    g = Graph("tree", [("%x", f"f32[{k},256]")])
    row = [g.op("slice", "%x", attributes=f"axis=0 start={i} len=1 step=1") for i in range(k)]
    while len(row) > 1:
        row = [g.op("add", *row[i : i + 2]) if i + 1 < len(row) else row[i] for i in range(0, len(row), 2)]
    return g, row


def transformer(n):
    """Equal layers: norm, attention written as two matmuls and a softmax, two linear layers with a GELU, residuals."""
    g = Graph("transformer", [("%x", "f32[32,64]")])
    v, layers = "%x", max(1, n // 12)
    for i in range(layers):
        gain, bias = g.param("f32[64]", "1.0"), g.param("f32[64]")
        h = g.op("layer_norm", v, gain, bias, attributes="axes=1 affine=true eps=1e-5")
        q, k, w = (g.op("linear", h, g.param("f32[64,64]")) for _ in range(3))
        s = g.op("softmax", g.op("dot", q, g.op("permute", k, attributes="perm=[1,0]")), attributes="axis=1")
        v = g.op("add", v, g.op("linear", g.op("dot", s, w), g.param("f32[64,64]")))
        h = g.op("gelu_erf", g.op("linear", v, g.param("f32[128,64]"), g.param("f32[128]")))
        v = g.op("add", v, g.op("linear", h, g.param("f32[64,128]"), g.param("f32[64]")))
    return g, [v]


def resnet(n):
    """Equal blocks: two convolutions with norms, a residual, ReLU."""
    g = Graph("resnet", [("%x", "f32[1,8,8,8]")])
    v, at = "%x", "stride=[1,1] padding=[1,1] dilation=[1,1] groups=1 transposed=false output_padding=[0,0]"
    for _ in range(max(1, n // 7)):
        h = v
        for _ in range(2):
            gain, shift = g.param("f32[8]", "1.0"), g.param("f32[8]", "1.0")
            h = g.op("conv", h, g.param("f32[8,8,3,3]"), attributes=at)
            h = g.op("batch_norm", h, gain, shift, shift, gain, attributes="eps=1e-5")
            h = g.op("relu", h) if _ == 0 else g.op("add", h, v)
        v = g.op("relu", h)
    return g, [v]


def scans(n):
    """Maxima and scans over alternating axes, one after another."""
    g = Graph("scans", [("%x", "f32[16,64]")])
    v = "%x"
    for i in range(max(1, n // 4)):
        v = g.op("sub", v, g.op("reduce.max", v, attributes=f"axes=[{i % 2}]"))
        v = g.op("tanh", g.op("scan.sum", v, attributes=f"axis={1 - i % 2}"))
    return g, [v]


def shared(n):
    """One value that many read, whose results become one, in pairs."""
    g = Graph("shared", [("%x", "f32[4096]")])
    y = g.op("exp", "%x")
    row = [g.op("mul", y, f"{1 + i / 1024}") for i in range(max(2, n // 2))]
    while len(row) > 1:
        row = [g.op("max", *row[i : i + 2]) if i + 1 < len(row) else row[i] for i in range(0, len(row), 2)]
    return g, row


FAMILIES = {
    f.__name__: f
    for f in [wide_concat, chain, dense, outputs, users, shared, inputs, tree, transformer, resnet, scans]
}


def described():
    """What the families are, a line each."""
    return [f"- `{name}`: {f.__doc__}" for name, f in FAMILIES.items()]


def compiled(kiln, path, target, limit):
    """Processor seconds, peak MB and the stages of one compilation; None beyond the limit."""
    with tempfile.TemporaryDirectory() as d:
        out, report = os.path.join(d, "out.kiln"), os.path.join(d, "out.json")
        call = [kiln, "compile", path, "--target", target, "-o", out, "--json", report]
        with open(os.path.join(d, "log"), "w+") as log:
            p = subprocess.Popen(call, stdout=log, stderr=log, preexec_fn=lambda: cpu_limit(limit))
            _, status, used = os.wait4(p.pid, 0)
            p.returncode = os.waitstatus_to_exitcode(status)
            if p.returncode != 0:
                log.seek(0)
                text = log.read().strip()
                if text:
                    print(f"{path}: {text}", file=sys.stderr)
                return None
        stages = json.load(open(report))
        seconds = used.ru_utime + used.ru_stime
        return {"cpu_s": seconds, "mb": used.ru_maxrss / 1024, "artifact_mb": os.path.getsize(out) / 1e6, **stages}


def cpu_limit(seconds):
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def exponent(points):
    """Slope of a straight line through the logarithms."""
    points = [(math.log(n), math.log(t)) for n, t in points if n >= 400 and t > 0]
    if len(points) < 2:
        return None
    mx, my = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    below = sum((x - mx) ** 2 for x, _ in points)
    return sum((x - mx) * (y - my) for x, y in points) / below if below else None


def table(results, machine, call):
    t = ["# How the time to compile grows", ""]
    t += [f"{machine}, {time.strftime('%Y-%m-%d')}. `{call}`", ""]
    t += [__doc__.split("\n\n", 2)[2].strip(), "", *described(), ""]
    for target in dict.fromkeys(r["target"] for r in results):
        rows = [r for r in results if r["target"] == target]
        sizes = sorted({r["asked"] for r in rows})
        t += [f"## {target}", "", "Processor seconds by number of nodes; `-`: over the time limit.", ""]
        t += ["| family | " + " | ".join(str(s) for s in sizes) + " | exponent | peak MB | import, rewrite, lower, codegen s |"]
        t += ["|---" * (len(sizes) + 4) + "|"]
        for family in dict.fromkeys(r["family"] for r in rows):
            mine = {r["asked"]: r for r in rows if r["family"] == family}
            cell = lambda s: f"{mine[s]['cpu_s']:.2f}" if s in mine and "cpu_s" in mine[s] else "-"
            done = [r for r in mine.values() if "cpu_s" in r]
            slope = exponent([(r["nodes"], r["cpu_s"]) for r in done])
            last = max(done, key=lambda r: r["asked"], default=None)
            stages = [last["timings"][k] for k in ("import_s", "rewrite_s", "lower_s", "codegen_s")] if last else []
            t += [
                f"| {family} | " + " | ".join(cell(s) for s in sizes) + f" | {slope:.2f} |" if slope is not None
                else f"| {family} | " + " | ".join(cell(s) for s in sizes) + " | |"
            ]
            t[-1] += f" {last['mb']:.0f} | " + ", ".join(f"{s:.2f}" for s in stages) + " |" if last else " | |"
        t += [""]
    return "\n".join(t)


COLOURS = ["#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#7f7f7f", "#1b9e77"]


def plot(results, path):
    """Both axes logarithmic, one panel a target, a line a family; the grey line is proportional to n."""
    targets = list(dict.fromkeys(r["target"] for r in results))
    w, h, left, top = 380, 300, 50, 30
    done = [r for r in results if "cpu_s" in r]
    lx = [math.log10(min(r["nodes"] for r in done)), math.log10(max(r["nodes"] for r in done))]
    ly = [math.log10(min(r["cpu_s"] for r in done)), math.log10(max(r["cpu_s"] for r in done))]
    s = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(targets) * (w + 70) + 130}" height="{h + 80}" font-family="sans-serif" font-size="11">',
        "<style>text{fill:#333}.a{stroke:#999}@media (prefers-color-scheme:dark){text{fill:#ddd}.a{stroke:#777}}</style>",
    ]
    for i, target in enumerate(targets):
        x0 = left + i * (w + 70)
        px = lambda v: x0 + (math.log10(v) - lx[0]) / (lx[1] - lx[0]) * w
        py = lambda v: top + h - (math.log10(v) - ly[0]) / (ly[1] - ly[0]) * h
        s.append(f'<text x="{x0}" y="{top - 12}">{target}: processor seconds by nodes</text>')
        s.append(f'<rect class="a" x="{x0}" y="{top}" width="{w}" height="{h}" fill="none"/>')
        for e in range(math.ceil(lx[0]), math.floor(lx[1]) + 1):
            s.append(f'<text x="{px(10**e):.0f}" y="{top + h + 15}" text-anchor="middle">{10**e}</text>')
        for e in range(math.ceil(ly[0]), math.floor(ly[1]) + 1):
            s.append(f'<text x="{x0 - 5}" y="{py(10**e) + 4:.0f}" text-anchor="end">{10.0**e:g}</text>')
        n = 10 ** lx[1]
        start = 10 ** ly[1] / n
        low = max(10 ** lx[0], 10 ** ly[0] / start)
        s.append(f'<path class="a" stroke-dasharray="4" d="M{px(low):.1f} {py(low * start):.1f}L{px(n):.1f} {py(n * start):.1f}"/>')
        for j, family in enumerate(FAMILIES):
            points = sorted((r["nodes"], r["cpu_s"]) for r in done if r["family"] == family and r["target"] == target)
            if points:
                d = "L".join(f"{px(n):.1f} {py(t):.1f}" for n, t in points)
                s.append(f'<path fill="none" stroke="{COLOURS[j % len(COLOURS)]}" stroke-width="1.5" d="M{d}"/>')
    for j, family in enumerate(FAMILIES):
        x, y = len(targets) * (w + 70) + 10, top + 14 * j + 10
        s.append(f'<text x="{x + 18}" y="{y}">{family}</text>')
        s.append(f'<path stroke="{COLOURS[j % len(COLOURS)]}" stroke-width="2" d="M{x} {y - 4}h14"/>')
    open(path, "w").write("\n".join(s) + "\n</svg>\n")


def machine():
    try:
        name = re.search(r"model name\s*:\s*(.*)", open("/proc/cpuinfo").read()).group(1)
    except (OSError, AttributeError):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--kiln", default="target/release/kiln")
    a.add_argument("--sizes", default=",".join(map(str, SIZES)))
    a.add_argument("--families", default=",".join(FAMILIES))
    a.add_argument("--targets", default="cpu,sm_90a")
    a.add_argument("--limit", type=int, default=60, help="processor seconds for one compilation")
    a.add_argument("--write", help="only write the graphs to this folder")
    a.add_argument("--out", help="the page to write")
    a.add_argument("--plot", help="the picture to write")
    a = a.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as d:
        for family in a.families.split(","):
            for size in map(int, a.sizes.split(",")):
                g, out = FAMILIES[family](size)
                folder = a.write or d
                os.makedirs(folder, exist_ok=True)
                path = os.path.join(folder, f"{family}_{size}.kiln")
                with open(path, "w") as f:
                    f.write(g.text(out))
                if a.write:
                    continue
                for target in a.targets.split(","):
                    mine = [r for r in results if r["family"] == family and r["target"] == target]
                    r = {"family": family, "asked": size, "nodes": g.size, "target": target}
                    if all("cpu_s" in m for m in mine):
                        r.update(compiled(a.kiln, path, target, a.limit) or {})
                    results.append(r)
                    shown = f"{r['cpu_s']:8.2f} s {r['mb']:6.0f} MB {json.dumps(r['timings'])} kernels {r['kernels']} programs {r['programs']} explain {r['explain_s']:.2f} artifact {r['artifact_mb']:.1f}" if "cpu_s" in r else "beyond the limit"
                    print(f"{family:12} {target:7} {size:5} ({r['nodes']:5}) {shown}", flush=True)
    if a.out:
        with open(a.out, "w") as f:
            f.write(table(results, machine(), "python3 benches/growth.py --limit %d" % a.limit))
    if a.plot:
        plot(results, a.plot)


if __name__ == "__main__":
    main()
