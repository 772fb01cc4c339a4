"""The launches that a launch of a wrapped kernel may become: one for each configuration, with what
heuristics compute for it. Dynamo traces these functions as it traces user code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kiln.kernels.tuning import Autotuner, Config, Heuristics


@dataclass
class Choice:
    """A launch of the kernel itself."""

    kernel: Any
    #: Arguments and options of the launch, by name.
    named: dict[str, Any]
    #: The configurations that it comes from, the outermost first.
    configs: list[Config]


def choices(kernel: Any, named: dict[str, Any]) -> list[Choice]:
    """All that a launch with these arguments may become."""
    if isinstance(kernel, Heuristics):
        computed = dict(named)
        for name, value in kernel.values.items():
            computed[name] = value(computed)
        return choices(kernel.fn, computed)
    if isinstance(kernel, Autotuner):
        found = []
        for config in kernel.configs:
            for choice in choices(kernel.fn, {**named, **config.all_kwargs()}):
                found.append(Choice(choice.kernel, choice.named, [config, *choice.configs]))
        return found
    return [Choice(kernel, named, [])]


def sizes(grid: Any, choice: Choice) -> list[Any]:
    """The three sizes of a grid."""
    found = grid({**choice.kernel.defaults, **choice.named}) if callable(grid) else grid
    listed = list(found) if isinstance(found, (tuple, list)) else [found]
    return [*listed, 1, 1][:3] if len(listed) < 3 else listed


def order(kernel: Any, named: dict[str, Any], found: list[Choice]) -> list[int]:
    """Positions of the choices in the order in which they are tried: what was measured for these
    arguments first, and what the kernel's own pruning leaves out last."""
    while isinstance(kernel, Heuristics):
        kernel = kernel.fn
    if not isinstance(kernel, Autotuner) or len(found) == 1:
        return list(range(len(found)))
    measured = kernel.measured(named)
    kept = kernel.kept(named)

    def rank(position: int) -> tuple[bool, int]:
        config = found[position].configs[0]
        place = next((i for i, other in enumerate(kept) if other is config), len(kept))
        return config is not measured, place

    return sorted(range(len(found)), key=rank)
