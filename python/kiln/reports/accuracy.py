"""Accuracy: results of a compiled program against eager against float64, for `kiln.check`.

All are compared with the module run eagerly in float64, which stands for the true result. How far
Kiln may be from it follows from the program: it runs several times more with its roundings moved
as far as the contract lets a compiler round otherwise (`kiln.reports.rounding`), and the spread of
these runs is the bound, element by element. Infinities and NaN must be where eager has them, and
integers those of eager or of float64, unless the moved runs disagree there: then rounding decides,
and any value passes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kiln.reports import rounding


@dataclass(frozen=True)
class Output:
    """One output of a check."""

    #: Where it is in the result, as `['logits']`; empty for a result that is one tensor.
    name: str
    dtype: str
    shape: tuple[int, ...]
    #: Errors against float64: Kiln's where it is closest to what passes there, and eager's largest.
    kiln_error: float
    eager_error: float
    #: The largest error that passes where Kiln's is.
    allowed: float
    ok: bool
    #: What is wrong beside the error.
    note: str = ""


@dataclass(frozen=True)
class CheckResult:
    """What `kiln.check` found. True if every output passes."""

    outputs: list[Output]

    @property
    def ok(self) -> bool:
        """Whether every output passes."""
        return all(output.ok for output in self.outputs)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        head = f"{'output':<24}{'dtype':<10}{'kiln':>11}{'eager':>11}{'allowed':>11}"
        lines = [head]
        for o in self.outputs:
            errors = f"{o.kiln_error:>11.2e}{o.eager_error:>11.2e}{o.allowed:>11.2e}"
            verdict = "" if o.ok else "  FAILED"
            note = f"  {o.note}" if o.note else ""
            lines.append(f"{o.name or '(result)':<24}{o.dtype:<10}{errors}{verdict}{note}")
        return "\n".join(lines)

    __repr__ = __str__

    def raise_if_failed(self) -> None:
        """Raises AssertionError with the table unless every output passes."""
        if not self.ok:
            raise AssertionError(f"compiled and eager differ by more than rounding:\n{self}")


def references(
    call: Callable[[], Callable[..., Any]],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    wide: Callable[[], Callable[..., Any]] | None = None,
    tf32: Collection[str] = (),
) -> tuple[Any, Any, list[Any]]:
    """The results of a program run eagerly, eagerly in float64, and eagerly with perturbed
    roundings.

    `call`: makes the callable, anew for each run. `wide`: makes it in float64, if it has tensors of
    its own. `tf32`: operators whose f32 operands may be rounded to TF32.
    """

    def run(function: Callable[..., Any], mode: AbstractContextManager[Any], convert: Any) -> Any:
        call_args, call_kwargs = pytree.tree_map(convert, copied((args, dict(kwargs))))
        with mode:
            return function(*call_args, **call_kwargs)

    def same(leaf: Any) -> Any:
        return leaf

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        eager = run(call(), contextlib.nullcontext(), same)
        exact = run((wide or call)(), rounding.exact(), rounding.widened)
        seeds = range(rounding.RUNS)
        samples = [run(call(), rounding.perturbed(seed, tf32), same) for seed in seeds]
    return eager, exact, samples


def copied(tree: Any) -> Any:
    """The tree with each tensor cloned, for modules that write to their inputs."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), tree)


def compare(got: Any, eager: Any, exact: Any, samples: Sequence[Any]) -> CheckResult:
    """Compares results of the same nesting. `samples`: results with perturbed roundings.

    >>> x = torch.ones(2)
    >>> compare(x * 1.5, x, x.double(), [x]).ok
    False
    """
    ours, theirs = (pytree.tree_flatten_with_path(r)[0] for r in (got, eager))
    truth = pytree.tree_leaves(exact)
    moved = list(zip(*map(pytree.tree_leaves, samples), strict=True))
    if [path for path, _ in ours] != [path for path, _ in theirs]:
        nested = Output("", "", (), 0.0, 0.0, 0.0, False, "the results are nested differently")
        return CheckResult([nested])
    return CheckResult(
        [
            _output(pytree.keystr(path), a, b, c, s)
            for (path, a), (_, b), c, s in zip(ours, theirs, truth, moved, strict=True)
        ]
    )


def _output(name: str, got: Any, eager: Any, exact: Any, samples: Sequence[Any]) -> Output:
    if not isinstance(eager, torch.Tensor):
        ok = type(got) is type(eager) and got == eager
        note = "" if ok else f"{got!r}, and eagerly {eager!r}"
        return Output(name, type(eager).__name__, (), 0.0, 0.0, 0.0, ok, note)
    dtype, shape = str(eager.dtype).removeprefix("torch."), tuple(eager.shape)
    if not isinstance(got, torch.Tensor) or (got.dtype, got.shape) != (eager.dtype, eager.shape):
        note = f"{_kind(got)}, and eagerly {_kind(eager)}"
        return Output(name, dtype, shape, 0.0, 0.0, 0.0, False, note)
    if not (eager.is_floating_point() or eager.is_complex()):
        settled = torch.ones_like(eager, dtype=torch.bool)
        for sample in samples:
            settled &= sample == eager
        wrong = int(((got != eager) & (got != exact) & settled).sum())
        note = f"{wrong} elements differ" if wrong else ""
        return Output(name, dtype, shape, float(wrong), 0.0, 0.0, wrong == 0, note)
    a, b, c = (_reals(t) for t in (got, eager, exact))
    moved = torch.stack([_reals(sample) for sample in samples])
    # Where eager has no number the same must be there, and float64 says nothing.
    settled = _class(moved).eq(_class(b)).all(0)
    same = bool(torch.where(settled, _class(a).eq(_class(b)), True).all())
    finite = settled & b.isfinite() & c.isfinite() & a.isfinite()
    allowed = _allowed(c[finite], moved[:, finite], torch.finfo(eager.dtype).eps)
    errors = (a[finite] - c[finite]).abs()
    eager_error = _largest(b[finite] - c[finite])
    note = "" if same else "infinities or NaN where eager has none, or the other way"
    if errors.numel() == 0:
        return Output(name, dtype, shape, 0.0, eager_error, 0.0, same, note)
    closest = int(
        (errors - allowed).argmax() if bool((errors > allowed).any()) else errors.argmax()
    )
    kiln_error, bound = float(errors[closest]), float(allowed[closest])
    return Output(
        name, dtype, shape, kiln_error, eager_error, bound, same and kiln_error <= bound, note
    )


def _allowed(exact: torch.Tensor, samples: torch.Tensor, eps: float) -> torch.Tensor:
    """The largest error of each element that rounding explains, and a unit of its type.

    Few runs may all leave one of many elements where it is; none is taken for steadier than the
    median element that moves."""
    spread = (samples - exact).square().mean(0).sqrt()
    moving = spread[spread > 0]
    floor = moving.median() if moving.numel() else spread.new_zeros(())
    # What float64 is off by itself, for results that are as fine.
    reference_eps = torch.finfo(torch.float64).eps / eps
    factor = rounding.spread_factor(exact.numel()) * math.sqrt(1 + reference_eps * reference_eps)
    return factor * spread.maximum(floor) + eps * exact.abs()


def _class(values: torch.Tensor) -> torch.Tensor:
    """The class of each value: 1 and -1 for infinities, 2 for NaN, 0 for numbers."""
    infinite = torch.where(values.isinf(), values.sign(), 0.0)
    return torch.where(values.isnan(), 2.0, infinite)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__


def _reals(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()


def _largest(values: torch.Tensor) -> float:
    if values.numel() == 0:
        return 0.0
    worst = float(values.abs().max())
    return worst if worst == worst else float("inf")
