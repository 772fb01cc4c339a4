"""`kiln.check`: compiled against eager against float64.

All three are compared with the module run eagerly in float64, which stands for the true result.
Kiln passes if its largest error is at most twice eager's own plus one unit in the last place of the
output's dtype, at the size of the output's largest element. Infinities and NaN must be where eager
has them. Integers must equal eager's or those of float64.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kiln.compiling import compile


@dataclass(frozen=True)
class Output:
    """One output of a check."""

    #: Where it is in the result, as `['logits']`; empty for a result that is one tensor.
    name: str
    dtype: str
    shape: tuple[int, ...]
    #: The largest errors against float64, and the largest one that passes.
    kiln_error: float
    eager_error: float
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


def check(
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
) -> CheckResult:
    """Runs the module compiled, eagerly and eagerly in float64, on copies, and compares.

    >>> import kiln
    >>> bool(kiln.check(torch.nn.Linear(4, 4).eval(), (torch.ones(2, 4),)))
    True
    """
    kwargs = dict(kwargs or {})
    with torch.no_grad():
        example = _copied((tuple(args), kwargs))
        exact_args, exact_kwargs = pytree.tree_map(doubled, _copied((tuple(args), kwargs)))
        eager = copy.deepcopy(module)(*example[0], **example[1])
        exact = copy.deepcopy(module).double()(*exact_args, **exact_kwargs)
        got = _compiled(copy.deepcopy(module), tuple(args), kwargs, options)
    return compare(got, eager, exact)


def _compiled(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Mapping[str, Any] | None,
) -> Any:
    from kiln import export

    example = _copied((args, kwargs))
    exported = export.export(module, *example)
    call_args, call_kwargs = _copied((args, kwargs))
    return compile(exported, options=options)(*call_args, **call_kwargs)


def _copied(tree: Any) -> Any:
    """The same with tensors of its own, for modules that write to their inputs."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), tree)


def doubled(leaf: Any) -> Any:
    """A tensor of floats in float64, and all else as it is.

    >>> doubled(torch.ones(1)).dtype, doubled(3)
    (torch.float64, 3)
    """
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.is_complex():
        return leaf.to(torch.complex128)
    return leaf.double() if leaf.is_floating_point() else leaf


def compare(got: Any, eager: Any, exact: Any) -> CheckResult:
    """Compares three results of the same nesting.

    >>> x = torch.ones(2)
    >>> compare(x * 1.5, x, x.double()).ok
    False
    """
    ours, theirs, truth = (pytree.tree_flatten_with_path(r)[0] for r in (got, eager, exact))
    if [path for path, _ in ours] != [path for path, _ in theirs]:
        nested = Output("", "", (), 0.0, 0.0, 0.0, False, "the results are nested differently")
        return CheckResult([nested])
    return CheckResult(
        [
            _output(pytree.keystr(path), a, b, c)
            for (path, a), (_, b), (_, c) in zip(ours, theirs, truth, strict=True)
        ]
    )


def _output(name: str, got: Any, eager: Any, exact: Any) -> Output:
    if not isinstance(eager, torch.Tensor):
        ok = type(got) is type(eager) and got == eager
        note = "" if ok else f"{got!r}, and eagerly {eager!r}"
        return Output(name, type(eager).__name__, (), 0.0, 0.0, 0.0, ok, note)
    dtype, shape = str(eager.dtype).removeprefix("torch."), tuple(eager.shape)
    if not isinstance(got, torch.Tensor) or (got.dtype, got.shape) != (eager.dtype, eager.shape):
        note = f"{_kind(got)}, and eagerly {_kind(eager)}"
        return Output(name, dtype, shape, 0.0, 0.0, 0.0, False, note)
    if not (eager.is_floating_point() or eager.is_complex()):
        wrong = int(((got != eager) & (got != exact)).sum())
        note = f"{wrong} elements differ" if wrong else ""
        return Output(name, dtype, shape, float(wrong), 0.0, 0.0, wrong == 0, note)
    a, b, c = (_reals(t) for t in (got, eager, exact))
    # Where eager has no number, the same must be there, and float64 says nothing.
    finite = b.isfinite() & c.isfinite()
    same = torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()) and torch.equal(
        a[~finite].isnan(), b[~finite].isnan()
    )
    kiln_error, eager_error = _largest(a[finite] - c[finite]), _largest(b[finite] - c[finite])
    unit = torch.finfo(eager.dtype).eps * _largest(c[finite])
    allowed = 2 * eager_error + unit
    note = "" if same else "infinities or NaN where eager has none, or the other way"
    ok = same and kiln_error <= allowed
    return Output(name, dtype, shape, kiln_error, eager_error, allowed, ok, note)


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
