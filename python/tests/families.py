"""Programs drawn at random by a seed, for every door: a module, its inputs, and eager results.

`python families.py FOLDER` writes each one as a traced TorchScript archive with its inputs and
eager results, for the tests of `crates/torchscript`.
"""

from __future__ import annotations

import copy
import math
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


class Program(nn.Module):
    """The results of several expressions, each a function of the module and its inputs."""

    def __init__(self, expressions: Sequence[Callable[..., torch.Tensor]], **modules: nn.Module):
        super().__init__()
        self.expressions = list(expressions)
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(expression(self, *inputs) for expression in self.expressions)


@dataclass
class Drawn:
    """A drawn program: its expressions as text, one for each result."""

    name: str
    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    texts: list[str]
    #: Whether float64 tells which of two results is nearer to the truth: not where rounding selects
    #: elements, or types are the matter.
    continuous: bool = False

    def eager_in_f64(self) -> list[torch.Tensor | None]:
        """What eager PyTorch computes in float64, where that is the truth."""
        if not self.continuous:
            return [None] * len(self.texts)
        with torch.no_grad():
            results = copy.deepcopy(self.module).double()(*(x.double() for x in self.inputs))
        return [None if "nearest" in t else r for t, r in zip(self.texts, results, strict=True)]

    def eager(self) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            results: tuple[torch.Tensor, ...] = self.module(*(x.clone() for x in self.inputs))
        return results


def drawn(
    name: str,
    seed: int,
    expressions: Sequence[str],
    inputs: Sequence[torch.Tensor],
    **modules: nn.Module,
):
    """The program of expressions over `m`, the module, and `x0`, `x1`, …, the inputs."""
    names = ", ".join(["m", *(f"x{i}" for i in range(len(inputs)))])
    scope = {"torch": torch, "F": F, "math": math, "inf": math.inf}
    functions = [eval(f"lambda {names}: {text}", scope) for text in expressions]
    return Drawn(
        f"{name}_{seed}", Program(functions, **modules).eval(), tuple(inputs), list(expressions)
    )


# Resampling.

FACTORS = (1.12, 2.1, 1.0, 1 + 1e-7, 0.999999, 2.0, 0.5, 1 / 3, 1.5)
MODES = {1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}


def resampling(seed: int) -> Drawn:
    """Every mode by size and by factor, with `recompute_scale_factor`, `align_corners` and
    `antialias`; sizes of one, factors near one."""
    rng = random.Random(seed)
    dims = seed % 3 + 1
    dtype = rng.choice((torch.float32, torch.float32, torch.float64))
    have = [rng.choice((1, 2, 3, 5, 8, 9, 12)) for _ in range(dims)]
    # The general kernel for images begins at 129 rows and columns together.
    if dims == 2 and rng.random() < 0.5:
        have[rng.randrange(2)] = 120
    texts: list[str] = []
    while len(texts) < 10:
        mode = rng.choice(("nearest", "nearest-exact", "area", *MODES[dims]))
        options: dict[str, object] = {"mode": mode}
        if rng.random() < 0.4:
            options["size"] = [rng.choice((1, n, 2 * n, rng.randint(1, 3 * n))) for n in have]
        else:
            factors = [
                rng.choice((*FACTORS, rng.uniform(0.3, 2.5), rng.uniform(0.9, 1.1))) for _ in have
            ]
            if min(math.floor(n * f) for n, f in zip(have, factors, strict=True)) < 1:
                continue
            options["scale_factor"] = factors if rng.random() < 0.7 or dims == 1 else factors[0]
            options["recompute_scale_factor"] = rng.choice((None, False, True))
        if mode in MODES[dims]:
            options["align_corners"] = rng.choice((None, False, True))
            options["antialias"] = dims == 2 and rng.random() < 0.25
        text = f"F.interpolate(x0, {', '.join(f'{k}={v!r}' for k, v in options.items())})"
        try:
            drawn("", 0, [text], [torch.zeros(1, 1, *have, dtype=dtype)]).eager()
        except (RuntimeError, ValueError):
            continue
        texts.append(text)
    torch.manual_seed(seed)
    found = drawn("resampling", seed, texts, [torch.randn(2, 3, *have).to(dtype)])
    found.continuous = True
    return found


# Results of operators that fall back, under views and arithmetic.

#: A result of operators that libtorch runs, most of which have several: of matrices, or of an
#: LSTM's input.
SEVERAL = (
    "m.lstm(x1)[0]",
    "m.lstm(x1)[1][0]",
    "m.lstm(x1)[1][1]",
    "m.deep(x1)[1][0]",
    "m.deep(x1)[1][1]",
    "m.projected(x1)[1][0]",
    "m.gru(x1)[0]",
    "m.gru(x1)[1]",
    "m.rnn(x1)[1]",
    "torch.linalg.svd(x0)[1]",
    "torch.linalg.svd(x0, full_matrices=False)[2].abs()",
    "torch.linalg.qr(x0)[1].abs()",
    "torch.linalg.eigh(x0 @ x0.mT)[0]",
    "torch.linalg.slogdet(x0)[1]",
    "torch.linalg.lu_factor(x0)[0]",
    "torch.linalg.inv_ex(x0 + 9 * torch.eye(4))[0]",
    "torch.kthvalue(x0, 2, 1)[0]",
    "torch.mode(x0.round(), 1)[0]",
    "torch.median(x0, 2)[0]",
    "torch.frexp(x0)[0]",
    "torch.histogram(x0, 5)[0]",
)


def views_of(rng: random.Random, shape: Sequence[int]) -> str:
    """A view of a tensor of this shape, as text to append, which may leave no elements out."""
    rank = len(shape)
    kinds = ["unsqueeze", "reshape", "flatten", "squeeze"]
    if rank:
        kinds += [
            "select",
            "slice",
            "narrow",
            "transpose",
            "chunk",
            "unbind",
            "split",
            "expand",
            "permute",
            "movedim",
        ] * 2
    kind = rng.choice(kinds)
    axis = rng.randrange(rank) if rank else 0
    size = shape[axis] if rank else 1
    at = rng.choice((axis, axis - rank)) if rank else 0
    match kind:
        case "select":
            return f".select({at}, {rng.choice((-1, 0, size - 1))})"
        case "slice":
            leading = ":, " * axis
            part = rng.choice((f"{size // 2}:", ":-1" if size > 1 else ":", "::2", "-1:"))
            return f"[{leading}{part}]"
        case "narrow":
            return f".narrow({at}, {size // 2}, {size - size // 2})"
        case "transpose":
            return f".transpose({at}, {rng.randrange(rank)})"
        case "chunk":
            return f".chunk({min(2, size)}, {at})[-1]"
        case "split":
            return f".split({max(1, size - 1)}, {at})[0]"
        case "unbind":
            return f".unbind({at})[-1]"
        case "expand":
            sizes = ["-1"] * axis + ["2"] + ["-1"] * (rank - axis)
            return f".unsqueeze({axis}).expand({', '.join(sizes)})"
        case "permute":
            axes = list(range(rank))
            rng.shuffle(axes)
            return f".permute({axes})"
        case "movedim":
            return f".movedim({at}, {rng.randrange(rank)})"
        case "unsqueeze":
            return f".unsqueeze({rng.randint(-1, rank)})"
        case "reshape":
            return ".reshape(-1)" if rng.random() < 0.5 or not rank else f".reshape({shape[0]}, -1)"
        case "flatten":
            return f".flatten({rng.choice((0, -1))})"
        case _:
            return ".squeeze()" if rng.random() < 0.5 or not rank else f".squeeze({at})"


ARITHMETIC = (
    "{a} - {b}",
    "{a} * {b} + 1",
    "torch.cat([{a}.reshape(-1), {b}.reshape(-1)])",
    "{a} / ({b}.abs() + 1)",
    "torch.stack([{a}, {b}], -1)",
    "({a} + {b}).sum(-1)",
    "torch.maximum({a}, {b}).softmax(-1)",
    "{a}.mean() - {b}",
    "torch.where({a} > {b}, {a}, 0.5)",
)


def fallback_views(seed: int) -> Drawn:
    """Arithmetic on two views, of up to three steps each, of a result of a fallback."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    modules = {
        "lstm": nn.LSTM(6, 5, 2, bidirectional=True, batch_first=True),
        "deep": nn.LSTM(6, 5, 3),
        "projected": nn.LSTM(6, 5, 1, proj_size=2, bidirectional=True),
        "gru": nn.GRU(6, 5, 2, bidirectional=True),
        "rnn": nn.RNN(6, 5, 1, bidirectional=True),
    }
    inputs = [torch.randn(3, 4, 4), torch.randn(3, rng.choice((1, 4)), 6)]

    def shape_of(text: str) -> Sequence[int]:
        return drawn("", 0, [text], inputs, **modules).eager()[0].shape

    texts: list[str] = []
    while len(texts) < 8:
        # An LSTM's states are traced with a wrong shape by some versions of torch.
        base = rng.choice(SEVERAL[1:6] if len(texts) % 2 else SEVERAL)
        chains: list[str] = []
        while len(chains) < 2:
            text = base
            for _ in range(rng.randint(1, 3)):
                text += views_of(rng, shape_of(text))
            chains.append(text)
        text = rng.choice(ARITHMETIC).format(a=chains[0], b=chains[1])
        try:
            results = shape_of(text)
        except (RuntimeError, IndexError):
            # Shapes that do not broadcast: the same view twice does.
            text = rng.choice(ARITHMETIC[:6]).format(a=chains[0], b=chains[0])
            try:
                results = shape_of(text)
            except (RuntimeError, IndexError):
                continue
        if 0 not in results:
            texts.append(text)
    found = drawn("fallback_views", seed, texts, inputs, **modules)
    found.continuous = True
    return found


# Promotion.

PAIRS = (
    "{a} + {b}",
    "{a} - {b}",
    "{a} * {b}",
    "{a} / {b}",
    "{a} // {b}",
    "{a} % {b}",
    "{a} ** {b}",
    "torch.add({a}, {b}, alpha=2)",
    "torch.div({a}, {b}, rounding_mode='floor')",
    "torch.div({a}, {b}, rounding_mode='trunc')",
    "torch.fmod({a}, {b})",
    "torch.maximum({a}, {b})",
    "torch.minimum({a}, {b})",
    "torch.fmax({a}, {b})",
    "torch.atan2({a}, {b})",
    "torch.hypot({a}, {b})",
    "torch.pow({a}, {b})",
    "torch.float_power({a}, {b})",
    "torch.logaddexp({a}, {b})",
    "torch.xlogy({a}, {b})",
    "torch.copysign({a}, {b})",
    "torch.true_divide({a}, {b})",
    "torch.rsub({a}, {b})",
    "torch.where(x0 > 0, {a}, {b})",
    "{a} < {b}",
    "{a} == {b}",
    "{a} >= {b}",
    "torch.clamp({a}, {b})",
    "torch.clamp({a}, max={b})",
    "{a} & {b}",
    "{a} | {b}",
    "torch.bitwise_xor({a}, {b})",
    "torch.heaviside({a}, {b})",
    "torch.ldexp({a}, x5)",
    "torch.cat([{a}.reshape(1), {b}.reshape(1)])",
)
TRIPLES = (
    "torch.lerp({a}, {b}, {c})",
    "torch.addcmul({a}, {b}, {c})",
    "torch.addcmul({a}, {b}, {c}, value=2)",
    "torch.addcdiv({a}, {b}, {c})",
    "torch.clamp({a}, {b}, {c})",
    "torch.where({a} > {b}, {b}, {c})",
    "{a} * {b} + {c}",
    "({a} + {b}) / {c}",
    "{a} - {b} * {c}",
    "torch.stack([{a}.reshape(()), {b}.reshape(()), {c}.reshape(())]).sum()",
)
NUMBERS = ("(2)", "3.0", "0.1", "(-1)", "True", "2.5")
TYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


class Constants(nn.Module):
    """Tensors of rank 0 that a model holds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("f64", torch.tensor(0.1, dtype=torch.float64))
        self.register_buffer("f32", torch.tensor(0.7))
        self.register_buffer("f16", torch.tensor(1.3, dtype=torch.float16))
        self.register_buffer("i64", torch.tensor(3))


def promotion(seed: int) -> Drawn:
    """Binary and ternary operators over tensors of rank 0 and 1 of all types, Python numbers, and
    constants of the model."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    inputs = [(torch.rand(()) * 4 + 0.5).to(t) for t in TYPES]
    inputs += [(torch.rand(3) * 4 + 0.5).to(t) for t in (torch.float32, torch.float16, torch.int64)]
    tensors = [f"x{i}" for i in range(len(inputs))]
    constants = [
        "m.c.f64",
        "m.c.f32",
        "m.c.f16",
        "m.c.i64",
        "torch.tensor(0.1, dtype=torch.float64)",
        "torch.tensor(2)",
    ]

    def operands(n: int) -> list[str]:
        found = [
            rng.choice(
                (
                    rng.choice(tensors[:8]),
                    rng.choice(tensors[:8]),
                    rng.choice(constants),
                    rng.choice(NUMBERS),
                    rng.choice(tensors),
                )
            )
            for _ in range(n)
        ]
        # A result that depends on an input.
        found[rng.randrange(n)] = rng.choice(tensors)
        return found

    texts: list[str] = []
    while len(texts) < 16:
        pair = rng.random() < 0.7
        template = rng.choice(PAIRS if pair else TRIPLES)
        text = template.format(**dict(zip("abc", operands(2 if pair else 3), strict=False)))
        one = drawn("", 0, [text], inputs, c=Constants())
        try:
            # TorchScript has no form for some, such as a power of True.
            traced = torch.jit.trace(one.module, one.inputs, check_trace=False)
        except (RuntimeError, TypeError, AttributeError):
            continue
        # A bound that is a tensor beside one that is a number is read from the tensor, which a
        # graph cannot do.
        if "Implicit" in str(traced.graph):
            continue
        texts.append(text)
    return drawn("promotion", seed, texts, inputs, c=Constants())


# Complex values as pairs.


class Rotation(nn.Module):
    """The rotations of a rotary embedding, as the original Llama holds them."""

    def __init__(self):
        super().__init__()
        angles = torch.outer(torch.arange(4.0), 10.0 ** -torch.arange(3.0))
        self.register_buffer("z", torch.polar(torch.ones_like(angles), angles))


#: The rotary embedding as the original Llama writes it.
ROTARY = (
    "torch.view_as_real(torch.view_as_complex(x0.float().reshape(*x0.shape[:-1], -1, 2))"
    " * m.c.z.view(1, 1, 4, 3)).flatten(3).type_as(x0)"
)
COMPLEX = (
    "torch.view_as_complex(x0.reshape(2, 3, 4, 3, 2))",
    "torch.complex(x0[..., :3], x1[..., 3:])",
    "torch.polar(x1[..., :3].abs(), x0[..., 3:])",
    "m.c.z",
    "torch.polar(torch.ones(4, 3), torch.outer(torch.arange(4.0), torch.ones(3)))",
    "x0[..., :3].to(torch.complex64)",
    "torch.view_as_complex(torch.stack([x1[..., :3], x0[..., :3]], -1))",
)
OF_ONE = (
    "{a}.conj()",
    "{a} * (1 - 2j)",
    "1j * x0[..., :3] + {a}",
    "-{a}",
    "{a} * 2.5",
    "{a} / 3",
    "{a} + 0.5",
    "1 - {a}",
    "torch.exp({a} * 0.1)",
    "{a}.flip(-1)",
    "{a}.resolve_conj()",
    "{a} * {a}",
    "torch.square({a})",
    "torch.roll({a}, 1, 0)",
)
OF_TWO = (
    "{a} * {b}",
    "{a} + {b}",
    "{a} - {b}",
    "{a} / ({b} + 4)",
    "{a} * {b}.conj()",
    "torch.add({a}, {b}, alpha=2)",
    "{a} * x1[..., :3]",
    "x0[..., :3] - {a}",
    "{a} / (x1[..., 3:].abs() + 1)",
)
MOVED = (
    "",
    ".mT",
    ".transpose(-1, -2)",
    "[..., 1:, :]",
    ".unsqueeze(0)",
    ".reshape(-1)",
    ".sum(-1)",
    ".mean(0)",
    ".flatten(-2)",
    ".chunk(2, -1)[0]",
    ".expand(2, 3, 4, 3)",
)
REAL = (
    "{a}.abs()",
    "{a}.real + 1",
    "{a}.imag * 2",
    "torch.view_as_real({a})",
    "torch.view_as_real({a}).flatten(-2)",
    "({a} + 5).angle()",
    "torch.cat([{a}, {a}.conj()], -1).imag",
    "{a}.real.sum() + {a}.imag",
    "torch.where({a}.real > 0, {a}, -{a}).real",
)


def complex_pairs(seed: int) -> Drawn:
    """The rotary embedding, and arithmetic on complex values between real inputs and results."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    inputs = [torch.randn(2, 3, 4, 6), torch.randn(2, 3, 4, 6)]
    texts = [ROTARY]
    while len(texts) < 8:
        values = [rng.choice(COMPLEX) for _ in range(2)]
        for _ in range(rng.randint(0, 2)):
            i = rng.randrange(2)
            template = rng.choice(OF_ONE + OF_TWO)
            values[i] = f"({template.format(a=values[i], b=values[1 - i])})"
        moved = f"({rng.choice(OF_TWO).format(a=values[0], b=values[1])}){rng.choice(MOVED)}"
        text = rng.choice(REAL).format(a=f"({moved})")
        try:
            drawn("", 0, [text], inputs, c=Rotation()).eager()
        except (RuntimeError, IndexError):
            continue
        texts.append(text)
    return drawn("complex_pairs", seed, texts, inputs, c=Rotation())


#: Families with the seeds that tests draw.
FAMILIES: dict[Callable[[int], Drawn], range] = {
    resampling: range(12),
    fallback_views: range(8),
    promotion: range(16),
    complex_pairs: range(10),
}


def write(folder: Path) -> None:
    """Writes archives, inputs and eager results of all families."""
    from safetensors.torch import save_file

    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")
    folder.mkdir(parents=True, exist_ok=True)
    for family, seeds in FAMILIES.items():
        for seed in seeds:
            program = family(seed)
            traced = torch.jit.trace(
                program.module, tuple(x.clone() for x in program.inputs), check_trace=False
            )
            traced.save(str(folder / f"{program.name}.pt"))
            for kind, tensors in (("in", program.inputs), ("out", program.eager())):
                save_file(
                    {str(i): t.clone().contiguous() for i, t in enumerate(tensors)},
                    folder / f"{program.name}.{kind}.safetensors",
                )
            (folder / f"{program.name}.txt").write_text("\n".join(program.texts))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
