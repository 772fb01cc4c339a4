"""Matmuls of many shapes against float64: every size in every position, every epilogue, NaN and infinity.

    python3 benches/gemm_check.py --kiln dist/kiln [--seed N] [--cases N] [--group N] [--jobs N] [--epilogue NAME]... [--tf32] [--splits] [--f8] [--rows N]
                                   [--pairs] [--library [--its-own]]

Each element must lie within the rounding that its sum of absolute terms allows, and two runs must give equal bytes.
Cases are drawn from the seed; many go into one graph, so that a process is started once for all of them.
"""

import argparse
import concurrent.futures
import math
import os
import random
import subprocess
import sys
import tempfile

# Large enough for clusters of two blocks, which share the right operand.
CLUSTERED = [4096, 4096, 96]
SIZES = [1, 7, 8, 17, 63, 64, 65, 127, 129, 1000, 4097]
MORE = [2, 3, 5, 16, 31, 33, 100, 128, 192, 256, 257, 384, 511, 512, 768, 1024, 2048, 3072]
# Row reductions in the epilogue, in the tile where it has all columns.
ROWS = ["softmax", "log_softmax", "layer_norm", "rms_norm", "residual_norm", "row_sum", "row_max", "row_product"]
TILE = 256
# What cuBLASLt has epilogues for.
LIBRARY = ["bias", "residual", "gelu", "bias_relu", "bias_residual", "relu_of_all", "scaled"]
# Reductions of the rows of attention heads, in tiles as wide as a head where there is enough of them.
HEADS = ["head_norm", "head_softmax"]
EPILOGUES = [*ROWS, *HEADS, "bias_relu", "bias_residual", "relu_of_all", "scales", "none", "bias", "gelu", "silu", "residual", "row", "column", "leaky", "transpose", "cast", "two", "scaled", "swiglu", "geglu"]
FORMS = ["dot", "dot", "linear", "linear", "at", "bt"]
# Sums over pairs of rows: of squared differences and of their sizes.
PAIRS = ["squares", "distances"]
# Result types that differ from the operands'.
RESULT = {"f8e4m3": "f32"}
UNIT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}


def draw(rng, n, epilogues, numerics, rows, pairs):
    """A case: dtype, batch, sizes, orders of the operands, epilogue."""
    cases = [("swap", d, p, s) for d in ("bf16", "f32") for p in range(3) for s in SIZES]
    for dtype, form in [] if pairs else [(d, f) for d in ((numerics if numerics == "f8e4m3" else "f32",) if numerics else ("bf16", "f16")) for f in ("dot", "linear", "at", "bt")]:
        yield {"dtype": dtype, "numerics": numerics, "batch": 0, "sizes": CLUSTERED, "form": form, "epilogue": rng.choice(epilogues), "head": 128, "odd": False}
    for i in range(n):
        if i < len(cases):
            _, dtype, position, size = cases[i]
            sizes = [rng.choice(SIZES[:-1] + MORE[:-3]) for _ in range(3)]
            sizes[position] = size
        else:
            dtype = rng.choice(["bf16", "bf16", "f16", "f32", "f32"])
            sizes = [rng.choice(SIZES + MORE) for _ in range(3)]
        dtype = numerics if numerics == "f8e4m3" else "f32" if numerics else dtype
        if rows:
            sizes[0] = rng.choice([s for s in SIZES + MORE if s <= rows])
        if numerics == "splits" and i % 2:
            # Smaller ones are computed exactly.
            sizes = [max(s, rng.choice([300, 511, 700, 1024])) for s in sizes]
        epilogue = rng.choice(epilogues)
        if epilogue in ROWS and rng.random() < 0.8:
            sizes[1] = rng.choice([rng.randint(1, TILE), *[s for s in SIZES + MORE if s <= TILE]])
        while sizes[0] * sizes[1] * sizes[2] > 2e9:
            sizes[sizes.index(max(sizes))] //= 4
        head = rng.choice([64, 128, 128, 256])
        if epilogue in HEADS:
            sizes = [rng.choice([129, 1000, 4097, 8195]), head * rng.choice([2, 3, 8]), rng.choice([64, 65, 72, 256, 1000])]
            if rng.random() < 0.6:
                sizes = [max(s, (1 << 22) // sizes[1] + 1) if i == 0 else s for i, s in enumerate(sizes)]
        batch = rng.choice([0, 0, 0, 0, 2, 3, 7, 32, 512])
        batch = 0 if epilogue in HEADS else batch
        if batch * max(sizes[0] * sizes[1], sizes[0] * sizes[2], sizes[1] * sizes[2]) > 2e7 or batch * sizes[0] * sizes[1] * sizes[2] > 2e9:
            batch = 0
        form = rng.choice(PAIRS if pairs else FORMS)
        dtype = "f32" if pairs else dtype
        if batch and form == "linear":
            form = "dot"
        yield {"dtype": dtype, "numerics": numerics, "batch": batch, "sizes": sizes, "form": form, "epilogue": epilogue, "head": head, "odd": rng.random() < 0.08 and not (pairs and numerics == "fast")}


def text(case, i):
    """Inputs (name, type), lines and results of a case in text form."""
    given, (m, n, k), b = case["dtype"], case["sizes"], case["batch"]
    d = RESULT.get(given, given)
    lead = [b] if b else []
    ty = lambda *s, d=d: f"{d}{[*s]}".replace(" ", "")
    operand = lambda *s: ty(*s, d=given)
    form = case["form"]
    # Gate and up are halves of one matmul.
    half, n = n, n * (2 if case["epilogue"] == "geglu" else 1)
    if form in PAIRS:
        args = [(f"a{i}", ty(*lead, m, k)), (f"b{i}", ty(*lead, n, k))]
        apart = lambda x, shape: f"%{x}r{i} = reshape %{x}{i} shape={[*lead, *shape]}"
        term = f"%e{i} = mul %d{i}, %d{i}" if form == "squares" else f"%e{i} = abs %d{i}"
        lines = [apart("a", [m, 1, k]), apart("b", [1, n, k]), f"%d{i} = sub %ar{i}, %br{i}", term]
        lines += [f"%q{i} = reduce.sum %e{i} axes=[{len(lead) + 2}]", f"%c{i} = reshape %q{i} shape={[*lead, m, n]}"]
    elif form == "linear":
        args, lines = [(f"a{i}", operand(m, k)), (f"b{i}", operand(n, k))], [f"%c{i} = linear %a{i}, %b{i}"]
    else:
        left = (*lead, k, m) if form == "at" else (*lead, m, k)
        right = (*lead, n, k) if form == "bt" else (*lead, k, n)
        args, lines = [(f"a{i}", operand(*left)), (f"b{i}", operand(*right))], []
        perm = "[0,2,1]" if b else "[1,0]"
        x, y = f"%a{i}", f"%b{i}"
        if form == "at":
            lines, x = [f"%ta{i} = permute %a{i} perm={perm}"], f"%ta{i}"
        if form == "bt":
            lines, y = [f"%tb{i} = permute %b{i} perm={perm}"], f"%tb{i}"
        lines.append(f"%c{i} = dot {x}, {y}")
    c, e, results = f"%c{i}", case["epilogue"], [f"%y{i}"]
    if e == "none":
        results = [c]
    elif e in ("bias", "column"):
        args.append((f"v{i}", ty(n)))
        lines.append(f"%y{i} = {'add' if e == 'bias' else 'mul'} {c}, %v{i}")
    elif e == "row":
        args.append((f"v{i}", ty(m, 1)))
        lines.append(f"%y{i} = mul {c}, %v{i}")
    elif e in ("bias_relu", "bias_residual", "relu_of_all"):
        args.append((f"v{i}", ty(n)))
        lines.append(f"%h{i} = add {c}, %v{i}")
        if e != "bias_relu":
            args.append((f"w{i}", ty(*lead, m, n)))
            lines.append(f"%{'y' if e == 'bias_residual' else 's'}{i} = add %h{i}, %w{i}")
        if e != "bias_residual":
            lines.append(f"%y{i} = relu %{'h' if e == 'bias_relu' else 's'}{i}")
    elif e in HEADS:
        shape = f"[{m},{n // case['head']},{case['head']}]"
        args.append((f"v{i}", ty(case["head"])))
        lines.append(f"%h{i} = reshape {c} shape={shape}")
        if e == "head_norm":
            lines.append(f"%y{i} = rms_norm %h{i}, %v{i} eps=1e-6")
        else:
            lines += [f"%s{i} = softmax %h{i} axis=2", f"%y{i} = mul %s{i}, %v{i}"]
    elif e == "residual":
        args.append((f"v{i}", ty(*lead, m, n)))
        lines.append(f"%y{i} = add {c}, %v{i}")
    elif e == "gelu":
        args.append((f"v{i}", ty(n)))
        lines += [f"%h{i} = add {c}, %v{i}", f"%y{i} = gelu_tanh %h{i}"]
    elif e == "scales":
        args += [(f"v{i}", ty(m, 1)), (f"w{i}", ty(n)), (f"z{i}", ty(n))]
        lines += [f"%s{i} = mul {c}, %v{i}", f"%t{i} = mul %s{i}, %w{i}", f"%y{i} = add %t{i}, %z{i}"]
    elif e in ("softmax", "log_softmax"):
        lines.append(f"%y{i} = {e} {c} axis={len(lead) + 1}")
    elif e == "layer_norm":
        args += [(f"v{i}", ty(n)), (f"w{i}", ty(n))]
        lines.append(f"%y{i} = layer_norm {c}, %v{i}, %w{i} eps=1e-5")
    elif e == "rms_norm":
        args.append((f"v{i}", ty(n)))
        lines.append(f"%y{i} = rms_norm {c}, %v{i} eps=1e-6")
    elif e == "residual_norm":
        args += [(f"v{i}", ty(*lead, m, n)), (f"w{i}", ty(n)), (f"z{i}", ty(n))]
        lines += [f"%s{i} = add {c}, %v{i}", f"%y{i} = layer_norm %s{i}, %w{i}, %z{i} eps=1e-5"]
    elif e in ("row_sum", "row_max"):
        lines.append(f"%y{i} = reduce.{e[4:]} {c} axes=[{len(lead) + 1}]")
    elif e == "row_product":
        args.append((f"v{i}", ty(*lead, m, n)))
        lines += [f"%p{i} = mul {c}, %v{i}", f"%y{i} = reduce.sum %p{i} axes=[{len(lead) + 1}]"]
    elif e == "silu":
        lines.append(f"%y{i} = silu {c}")
    elif e == "leaky":
        lines += [f"%p{i} = gt {c}, 0.0", f"%l{i} = mul {c}, 0.01", f"%y{i} = select %p{i}, {c}, %l{i}"]
    elif e == "scaled":
        args.append((f"v{i}", ty(*lead, m, n)))
        lines += [f"%s{i} = mul {c}, 0.5", f"%r{i} = mul %v{i}, 2.0", f"%y{i} = add %s{i}, %r{i}"]
    elif e == "transpose":
        lines.append(f"%y{i} = permute {c} perm={'[0,2,1]' if b else '[1,0]'}")
    elif e == "cast":
        lines.append(f"%y{i} = cast {c} to=f32" if d != "f32" else f"%y{i} = cast {c} to=bf16")
    elif e == "two":
        lines.append(f"%y{i} = relu {c}")
        results = [c, f"%y{i}"]
    elif e == "geglu":
        axis = len(lead) + 1
        lines += [f"%l{i} = slice {c} axis={axis} start=0 len={half}", f"%g{i} = slice {c} axis={axis} start={half} len={half}"]
        lines += [f"%s{i} = gelu_erf %g{i}", f"%y{i} = mul %l{i}, %s{i}"]
    elif e == "swiglu":
        args.append((f"w{i}", args[1][1]))
        dual = lines[-1].replace(f"%c{i} =", f"%u{i} =").replace(f"%b{i}", f"%w{i}")
        if form == "bt":
            lines.append(f"%tw{i} = permute %w{i} perm={perm}")
            dual = f"%u{i} = dot {x}, %tw{i}"
        lines += [dual, f"%s{i} = silu {c}", f"%y{i} = mul %s{i}, %u{i}"]
    return args, lines, results


def gated(s, of_gate, u, of_other, unit):
    """The largest error of a gate times another matmul's result, from the errors of both."""
    return (of_gate * 1.2 + 4 * unit * s.abs() + 1e-6) * (u.abs() + of_other) + (s.abs() + of_gate * 1.2) * of_other + 2 * unit * (s * u).abs()


def rows(e, c, slack, more, unit):
    """What becomes of the rows, and what rounding of their elements explains; infinite where a norm has next to nothing to divide by."""
    import torch

    mean = lambda t: t.mean(-1, keepdim=True)
    few = 2.0**-19
    if e in ("softmax", "log_softmax"):
        p = c.softmax(-1)
        apart = slack + (p * slack).sum(-1, keepdim=True)
        if e == "softmax":
            return p, p * (torch.expm1(1.3 * apart) + few + 2 * unit) + 2.0**-24
        y = c.log_softmax(-1)
        return y, 1.3 * apart + few * (1 + c.abs() + y.abs()) + 3 * unit * y.abs()
    if e in ("row_sum", "row_max", "row_product"):
        if e == "row_max":
            return c.amax(-1, keepdim=True), slack.amax(-1, keepdim=True) + unit * c.abs().amax(-1, keepdim=True)
        if e == "row_product":
            c, slack = c * more[0], slack * more[0].abs() + unit * (c * more[0]).abs()
        y = c.sum(-1, keepdim=True)
        return y, (slack + few * c.abs()).sum(-1, keepdim=True) + 2 * unit * y.abs()
    if e == "residual_norm":
        c = c + more[0]
        slack, more = slack + unit * c.abs(), more[1:]
    x, eps = c, 1e-6
    if e != "rms_norm":
        x, slack, eps = c - mean(c), slack + mean(slack) + few * mean(c.abs()), 1e-5
    square = mean(x * x) + eps
    off = (mean(2 * x.abs() * slack + slack * slack) / square) + few
    y = x * square.rsqrt() * more[0]
    error = more[0].abs() * square.rsqrt() * (slack * (1 + off) + x.abs() * off) + 3 * unit * y.abs()
    error = torch.where(off > 0.3, torch.inf, error)
    if e != "rms_norm":
        y = y + more[1]
        error = error + 2 * unit * y.abs()
    return y, error + 2.0**-24


def pairs(a, b, form, tf32, lost):
    """Sums over pairs of rows, and what rounding explains: all terms have one sign; by a matmul, digits of both squares cancel."""
    import torch

    p = 2.0 if form == "squares" else 1.0
    c = torch.cdist(a, b, p=p, compute_mode="donot_use_mm_for_euclid_dist") ** p
    if form == "squares" and tf32:
        return c, (a.square().sum(-1)[..., None] + b.square().sum(-1)[..., None, :]) * lost
    return c, c * lost


def reference(case, given, device):
    """In float64: results, and for each the largest error that rounding explains."""
    import torch
    import torch.nn.functional as F

    d, k = RESULT.get(case["dtype"], case["dtype"]), case["sizes"][2]
    a, b, *more = [t.to(device).double() for t in given]
    form = case["form"]
    a = a.mT if form == "at" else a
    turn = lambda t: t.mT if form in ("linear", "bt") else t
    b = turn(b)
    # What the operands lose as tf32, ten bits after the point, and what the sums do; three matmuls in tf32 lose no more than f32.
    tf32 = case["numerics"] == "fast"
    lost = 2.0**-24 * (math.sqrt(k) * 2 + 8) + (2.0**-9 if tf32 else 0)
    if case["dtype"] == "f8e4m3":
        # Tensor cores keep 13 bits beside the largest term of an instruction: errors of cuBLAS reach 2^-12.
        lost += 2.0**-11
    v = more[0] if more else None
    if form in PAIRS:
        c, bound = pairs(a, b, form, tf32, lost)
    else:
        # The sum, and the casts on the way: the matmul's result itself is rounded to its type.
        c, bound = a @ b, (a.abs() @ b.abs()) * lost
    unit = UNIT[d]
    slack = bound + unit * c.abs()
    e = case["epilogue"]
    if e == "swiglu":
        w = turn(v)
        u = a @ w
        other = (a.abs() @ w.abs()) * lost + unit * u.abs()
        s = F.silu(c)
        return [s * u], [gated(s, slack, u, other, unit)], [d]
    if e == "geglu":
        (u, g), (other, of_gate) = c.chunk(2, -1), slack.chunk(2, -1)
        s = F.gelu(g)
        return [s * u], [gated(s, of_gate, u, other, unit)], [d]
    if e in HEADS:
        c, slack = (t.unflatten(-1, (-1, case["head"])) for t in (c, slack))
        if e == "head_norm":
            y, error = rows("rms_norm", c, slack, more, unit)
        else:
            y, error = rows("softmax", c, slack, more, unit)
            y, error = y * v, error * v.abs() + 2 * unit * (y * v).abs()
        return [y], [error], [d]
    if e in ROWS:
        y, error = rows(e, c, slack, more, unit)
        return [y], [error], [d]
    if e == "none":
        return [c], [slack], [d]
    if e == "two":
        return [c, c.relu()], [slack, slack], [d, d]
    if e == "transpose":
        return [c.mT], [slack.mT], [d]
    if e == "cast":
        to = "f32" if d != "f32" else "bf16"
        return [c], [slack + UNIT[to] * c.abs()], [to]
    gain = 1.2
    if e in ("bias", "residual"):
        y = c + v
    elif e in ("bias_relu", "bias_residual", "relu_of_all"):
        y = c + v + (more[1] if e != "bias_relu" else 0)
        # The library's sums are rounded once, others where the graph has them.
        slack = slack + 2 * unit * (c.abs() + v.abs())
        y = y if e == "bias_residual" else y.relu()
    elif e in ("column", "row"):
        y, gain = c * v, v.abs()
    elif e == "scales":
        y, gain = c * v * more[1] + more[2], (v * more[1]).abs()
        slack = slack + unit * c.abs()
    elif e == "gelu":
        y = F.gelu(c + v, approximate="tanh")
        slack = slack + unit * (c + v).abs()
    elif e == "silu":
        y = F.silu(c)
    elif e == "leaky":
        y = torch.where(c > 0, c, 0.01 * c)
    elif e == "scaled":
        y = c * 0.5 + v * 2
        slack = slack + unit * (v.abs() * 2)
    return [y], [gain * slack + 3 * unit * y.abs() + 4 * unit * unit], [d]


def run_group(kiln, device, cases, folder, seed, library):
    """Problems of a group of cases."""
    import torch
    from safetensors.torch import load_file, save_file

    types = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f8e4m3": torch.float8_e4m3fn}
    inputs, body, results, tensors, spans = [], [], [], [], []
    g = torch.Generator().manual_seed(seed)
    for i, case in enumerate(cases):
        args, lines, out = text(case, i)
        inputs += [f"%{n}: {t}" for n, t in args]
        body += lines
        start = len(tensors)
        for _, t in args:
            shape = [int(x) for x in t[t.index("[") + 1 : -1].split(",")]
            # Sums of a thousand and more stay within f16.
            x = torch.randn(*shape, generator=g) * (case["sizes"][2] ** -0.25)
            if case["odd"]:
                flat = x.view(-1)
                for value in (math.nan, math.inf, -math.inf):
                    flat[torch.randint(flat.numel(), (1,), generator=g)] = value
            tensors.append(x.to(types[t[: t.index("[")]]))
        spans.append((start, len(tensors), len(results), len(out)))
        results += out
    path = f"{folder}/g{seed}"
    with open(path + ".kiln", "w") as f:
        f.write(f"graph products({', '.join(inputs)}) {{\n  " + "\n  ".join(body) + f"\n  return {', '.join(results)}\n}}\n")
    save_file({str(i): t for i, t in enumerate(tensors)}, path + ".safetensors")
    more = {"fast": ["--numerics", "fast"], "splits": ["--splits"]}.get(cases[0]["numerics"], [])
    if library:
        ops = sorted({"linear" if c["form"] == "linear" else "dot" for c in cases})
        with open(path + ".toml", "w") as f:
            f.write("".join(f'[[use_schedule]]\nat = "op:{op}"\nschedule = "call library"\n' for op in ops))
        more += ["--constraints", path + ".toml"]
    runs = []
    for r in range(2):
        out = f"{path}.out{r}.safetensors"
        done = subprocess.run([kiln, "run", path + ".kiln", "--inputs", path + ".safetensors", "--outputs", out, "--device", device, *more], capture_output=True, text=True)
        if done.returncode:
            return [f"group {seed}: {(done.stderr.strip() or 'failed')[:400]}"]
        runs.append(load_file(out))
        os.remove(out)
    problems = []
    for case, (start, end, first, count) in zip(cases, spans):
        want, slack, out_types = reference(case, tensors[start:end], device)
        for j in range(count):
            got, again = runs[0][str(first + j)], runs[1][str(first + j)]
            bits = torch.int16 if got.element_size() == 2 else torch.int32
            same = torch.equal(got.view(bits), again.view(bits))
            x, y, s = got.to(device).double(), want[j], slack[j]
            huge = {"f16": 65504.0, "bf16": 3.38e38, "f32": 3.4e38}[out_types[j]]
            if x.shape != y.shape:
                problems.append(f"{case}: {tuple(x.shape)} for {tuple(y.shape)}")
                continue
            finite = y.isfinite() & (y.abs() < huge * 0.99) & s.isfinite()
            bad = (finite & ~((x - y).abs() <= s + 1e-7)) | (y.isnan() & ~x.isnan())
            # An infinite gain has the sign of what it meets, which may be next to nothing.
            either = x.isinf() if "norm" in case["epilogue"] else x == y
            bad |= y.isinf() & ~either & ~x.isnan()
            if case["epilogue"] in ("none", "transpose", "cast", "bias", "bias_relu"):
                bad |= y.isinf() & (x != y)
            if bad.any() or not same:
                where = bad.nonzero()[0].tolist() if bad.any() else []
                at = tuple(where)
                what = f"{int(bad.sum())} wrong, first at {where}: {x[at].item()} for {y[at].item()} +- {s[at].item():.3g}" if where else "differs between runs"
                problems.append(f"{case}: {what}")
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kiln", default="dist/kiln")
    parser.add_argument("--device", default="cuda:0", help="cpu checks the host's matmuls")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--group", type=int, default=25)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--epilogue", action="append", choices=EPILOGUES, help="only these")
    parser.add_argument("--rows", type=int, help="at most so many rows")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--tf32", action="store_const", dest="numerics", const="fast", help="matmuls in f32 alone, operands taken as tf32")
    kinds.add_argument("--splits", action="store_const", dest="numerics", const="splits", help="matmuls in f32 alone, large ones as three in tf32")
    kinds.add_argument("--f8", action="store_const", dest="numerics", const="f8e4m3", help="matmuls of f8e4m3 alone")
    parser.add_argument("--library", action="store_true", help="matmuls by cuBLASLt")
    parser.add_argument("--its-own", action="store_true", help="only epilogues that cuBLASLt has too")
    parser.add_argument("--pairs", action="store_true", help="sums over pairs of rows in place of matmuls; exact unless --tf32")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    epilogues = [e for e in args.epilogue or (LIBRARY if args.its_own else EPILOGUES) if not (args.pairs and e in ("swiglu", "geglu", *HEADS) or args.library and e == "swiglu")]
    cases = list(draw(rng, args.cases, epilogues, args.numerics, args.rows, args.pairs))
    rng.shuffle(cases)
    groups = [cases[i : i + args.group] for i in range(0, len(cases), args.group)]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        work = [pool.submit(run_group, args.kiln, args.device, g, folder, args.seed * 1000 + i, args.library) for i, g in enumerate(groups)]
        problems = [p for w in work for p in w.result()]
    for p in problems[:40]:
        print(p)
    print(f"seed {args.seed}: {len(cases)} matmuls, {len(problems)} problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
