"""What a launch of a kernel says of the variant that ran."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kiln import _native


@dataclass(frozen=True)
class PassResult:
    """What a pass made of the program: its name, the program after it, and a diff of the lines that
    it changed."""

    name: str
    text: str
    diff: str

    def __str__(self) -> str:
        if self.diff:
            return f"== {self.name}\n{self.diff}"
        return f"== {self.name}\n{self.text}" if self.name == "written" else f"== {self.name}: no change\n"


class Passes(list[PassResult]):
    """The program as it was written, then after each pass."""

    def __init__(self, results: list[tuple[str, str, str]]) -> None:
        super().__init__(PassResult(*result) for result in results)

    def __str__(self) -> str:
        return "".join(map(str, self))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return next(p for p in self if p.name == key)
        return super().__getitem__(key)


class Facts(dict[str, Any]):
    """Facts about a kernel's code: registers, spills, shared memory, occupancy, widths of accesses,
    how matmuls are computed, the predicted time and its bound."""

    def __init__(self, values: str, text: str) -> None:
        super().__init__(json.loads(values))
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no fact is named {name}; there are {', '.join(self)}") from None


class Assembly(Mapping[str, str]):
    """The assembly as text (`str`), and the stages by the names that Triton gives them."""

    def __init__(self, launched: _native.Launched) -> None:
        self._launched = launched
        gpu = launched.ptx is not None
        self._stages = ("block", "llir", "ptx", "sass") if gpu else ("block", "llir", "asm")

    def __getitem__(self, stage: str) -> str:
        if stage not in self._stages:
            raise KeyError(f"{stage}; the stages are {', '.join(self._stages)}")
        if stage in ("sass", "asm"):
            return str(self)
        found = {"block": "block", "llir": "llvm", "ptx": "ptx"}[stage]
        return str(getattr(self._launched, found))

    def __iter__(self) -> Iterator[str]:
        return iter(self._stages)

    def __len__(self) -> int:
        return len(self._stages)

    def __str__(self) -> str:
        return self._launched.assembly()
