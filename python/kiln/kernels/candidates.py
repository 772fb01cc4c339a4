"""Configurations that Kiln proposes for a kernel that lists none: sizes of its blocks, and warps.

Blocks are the constant parameters that the kernel's text has in `arange`, in shapes, or in the bounds of a slice. What
they may be is bounded by the sizes of the launch, and what fits the device is left to the price. Some kernels need a
block as long as a row; proposals that compute something else than the largest blocks are dropped.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Callable

from kiln._native import KilnError
from kiln.kernels.config import Config
from kiln.kernels.measuring import Saved, on_gpu

#: Functions whose arguments are sizes of blocks.
_SHAPED = {
    "arange", "zeros", "full", "reshape", "view", "broadcast_to", "make_block_ptr", "make_tensor_descriptor",
}  # fmt: skip
#: Elements of a block: of kernels that multiply, and of others with one block size or several.
_MULTIPLYING = [32, 64, 128, 256]
_ALONE = [64 << n for n in range(8)]
_SEVERAL = [1 << n for n in range(11)]
_LEAST, _MOST = 256, 1 << 14
#: Elements of the largest block that is proposed, and of the largest result of a matmul.
_LARGEST, _LARGEST_RESULT = 1 << 16, 128 * 256
#: Groups of rows of tiles that stay in the cache together.
_GROUP = 8


@dataclass(frozen=True)
class Results:
    """The tensors that runs write, and the names of those that they read, too."""

    written: dict[str, Any]
    changed: set[str]


@dataclass
class Trial:
    """The configuration that others are compared with, and why those that are out are."""

    reference: Config | None
    wrong: dict[Config, str] = field(default_factory=dict)


class Proposal:
    """What can be proposed for a kernel."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        tree = ast.parse(kernel.source.text)
        constants = {p.name for p in kernel.params if p.is_constexpr}
        self.blocks = [p.name for p in kernel.params if p.name in constants & _sizes(tree)]
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self.multiplies = any(_called(call) in ("dot", "dot_scaled") for call in calls)
        self.others = [p for p in kernel.params if p.is_constexpr and p.name not in self.blocks]

    def configs(self, named: dict[str, Any]) -> list[Config]:
        """The configurations for a launch with these arguments."""
        fixed = self._fixed(named)
        blocks = [name for name in self.blocks if name not in named]
        largest = min(_LARGEST, max([16, *(_covering(size) for size in _sizes_of(named))]))
        found = []
        for sizes in self._sizes(len(blocks), named, largest):
            for warps in self._warps(sizes, on_gpu(named)):
                constants = {**fixed, **dict(zip(blocks, sizes, strict=True))}
                found.append(Config(constants, num_warps=warps))
        return found

    def _fixed(self, named: dict[str, Any]) -> dict[str, Any]:
        """Values of constant parameters that are no blocks, where the launch leaves them open."""
        fixed = {}
        for p in self.others:
            if p.name in named or p.has_default:
                continue
            if "GROUP" not in p.name.upper():
                raise ValueError(
                    f"{self.kernel.__name__} is tuned without configurations, and `{p.name}` is no size of "
                    "a block; pass it to the launch, or list configurations"
                )
            fixed[p.name] = _GROUP
        return fixed

    def _sizes(self, count: int, named: dict[str, Any], largest: int) -> list[tuple[int, ...]]:
        if self.multiplies:
            kept = [size for size in _MULTIPLYING if size <= max(largest, _MULTIPLYING[0])]
            return [sizes for sizes in product(kept, repeat=count) if _area(sizes) <= _LARGEST_RESULT]
        if count == 1:
            # A block may have to be as long as one of the sizes.
            covering = {_covering(size) for size in _sizes_of(named) if _ALONE[0] <= size <= _LARGEST}
            return [(size,) for size in sorted({*_ALONE, *covering}) if size <= max(largest, _ALONE[0])]
        kept = [size for size in _SEVERAL if size <= largest]
        least = min(_LEAST, largest)
        return [sizes for sizes in product(kept, repeat=count) if least <= math.prod(sizes) <= _MOST]

    def _warps(self, sizes: tuple[int, ...], gpu: bool) -> list[int]:
        if not gpu:
            return [4]
        if self.multiplies:
            return [4, 8]
        elements = math.prod(sizes)
        return [warps for warps in (1, 2, 4, 8, 16) if 2 <= elements // (32 * warps) <= 64] or [4]

    def same_results(
        self, run: Callable[[Config], None], tried: list[Config], every: list[Config], tensors: Results
    ) -> Trial:
        """Compares the results of some configurations with those of the largest blocks of all that run."""
        saved = Saved(tensors.written)
        trial = Trial(None)
        expected: dict[str, Any] = {}

        def fails(config: Config) -> bool:
            saved.restore()
            for name in tensors.written.keys() - tensors.changed:
                _spoil(tensors.written[name])
            try:
                run(config)
            except KilnError as e:
                trial.wrong[config] = str(e).strip().split("\n")[0]
                return True
            return False

        for config in sorted(every, key=self.elements, reverse=True):
            if not fails(config):
                trial.reference = config
                expected = {name: tensor.clone() for name, tensor in tensors.written.items()}
                break
        for config in tried:
            if config is trial.reference or config in trial.wrong or fails(config):
                continue
            if not all(_alike(tensors.written[name], expected[name]) for name in expected):
                why = f"computes something else than {trial.reference}: blocks may have to cover rows"
                trial.wrong[config] = why
        saved.restore()
        return trial

    def bounds(self, named: dict[str, Any]) -> list[int]:
        """What proposals depend on: they hold for launches with these sizes, and no others."""
        return [_covering(size) for size in _sizes_of(named)]

    def elements(self, config: Config) -> int:
        """The product of the sizes of its blocks."""
        return math.prod(value for name, value in config.kwargs.items() if name in self.blocks)


def _sizes(tree: ast.AST) -> set[str]:
    """Names in the arguments of functions that take sizes, and in bounds of slices."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in _SHAPED:
            # Of a function of a tensor, the tensor's own name is no size.
            for argument in [*node.args, *(k.value for k in node.keywords)]:
                found |= _names(argument)
        elif isinstance(node, ast.Slice) and node.upper is not None:
            found |= _names(node.upper)
    return found


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _sizes_of(named: dict[str, Any]) -> list[int]:
    """Integers of a launch and sizes of its tensors' axes."""
    found = [v for v in named.values() if isinstance(v, int) and not isinstance(v, bool) and v > 0]
    for value in named.values():
        found += [int(size) for size in getattr(value, "shape", ())]
    return found


def _covering(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def _area(sizes: tuple[int, ...]) -> int:
    """Elements of the largest result of blocks of these sizes: the first two are its own by custom."""
    return math.prod(sizes[:2])


def _spoil(tensor: Any) -> None:
    """Fills a tensor with what no kernel is expected to compute."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    elif tensor.dtype.is_signed:
        tensor.fill_(-77)
    else:
        tensor.fill_(1)


def _alike(found: Any, expected: Any) -> bool:
    """Whether two results differ by roundings at most."""
    import torch

    if not found.is_floating_point():
        return bool(torch.equal(found, expected))
    found, expected = found.float(), expected.float()
    finite = expected[torch.isfinite(expected)]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return bool(torch.allclose(found, expected, rtol=1e-2, atol=1e-3 * largest, equal_nan=True))
