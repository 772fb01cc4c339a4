"""What the sections of attention.py share: the device, the sides of a row, the check against float64, the tables."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import attention_cases as cases
import kiln
import timing
import torch
from timing import Side
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
}  # fmt: skip
NAN = float("nan")


class Bench:
    """What all sections share: the device, what to time, and what was found."""

    def __init__(self, device: str, rounds: int, peers: str, save: Callable[[Bench], None]) -> None:
        self.device, self.rounds, self.peers, self.save = device, rounds, peers, save
        self.lines: list[str] = []
        self.rows: list[dict[str, Any]] = []
        #: Why what was not timed, by the side and the reason: rows.
        self.untimed: dict[tuple[str, str], int] = {}
        self.wrong = 0
        self.section = ""

    def say(self, line: str = "") -> None:
        self.lines.append(line)
        print(line, flush=True)

    def head(self, section: str, title: str, columns: Iterable[str]) -> None:
        columns = list(columns)
        self.section = section
        for line in ("", f"## {title}", "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"):
            self.say(line)

    def row(self, cells: Iterable[object], **found: Any) -> None:
        self.say("| " + " | ".join(str(c) for c in cells) + " |")
        self.rows.append({"section": self.section, **found})
        for problem in found.get("problems", {}).items():
            self.untimed[problem] = self.untimed.get(problem, 0) + 1
        # What was measured is kept if the run is cut off.
        self.save(self)

    def end(self) -> None:
        """Tells why sides have no times in the section."""
        if self.untimed:
            self.say("\nNot timed:\n")
        for (side, reason), rows in self.untimed.items():
            self.say(f"- {side}, {rows} {'row' if rows == 1 else 'rows'}: {reason}")
        self.untimed = {}
        self.save(self)

    def small(self, batch: int, heads: int, length: int) -> tuple[int, int, int]:
        """Sizes that a CPU takes."""
        return (batch, heads, length) if self.device == "cuda" else (min(batch, 2), max(1, heads // 8), max(1, length // 32))

    def new(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, device=self.device, dtype=dtype)

    def fresh(self) -> None:
        torch._dynamo.reset()
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def kiln(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Callable[..., Any] | None, str]:
        """The compiled module and its kernels; or why there is none."""
        try:
            compiled = kiln.compile(module.eval(), args, options={"fallback": "error"})
            compiled(*args)
            kinds = [k.kind for k in compiled.explain().kernels]
            return compiled, f"{len(kinds)}, {kinds.count('attention')} of attention"
        except Exception as e:  # The row says so.
            return None, timing.first_line(e)

    def checked(
        self, compiled: Callable[..., Any], module: cases.Sdpa | cases.Primitives, args: tuple[Any, ...]
    ) -> tuple[str, dict[str, float]]:
        """Kiln's error and eager's, marked where Kiln's is not allowed."""
        want = cases.reference(module, args)
        ours = cases.worst(compiled(*args), want)
        try:
            eager = cases.worst(module(*args), want)
        except torch.OutOfMemoryError:
            # From primitives eager keeps all scores.
            eager = cases.worst(cases.Sdpa(module.case)(*args), want)
        wrong = not ours <= cases.allowed_error(eager, args)
        self.wrong += wrong
        return f"{'**wrong** ' * wrong}{ours:.1e}, {eager:.1e}", {"error": ours, "eager_error": eager}

    def through_sdpa(self, module: nn.Module, args: tuple[Any, ...]) -> dict[str, Side]:
        """`module` with the kernel that PyTorch chooses, and with each of its own."""
        if self.peers == "none" or self.device == "cpu":
            return {} if self.peers == "none" else {"SDPA": Side(lambda: module(*args))}

        def by(kernel: SDPBackend) -> Callable[[], Any]:
            def run() -> Any:
                with sdpa_kernel(kernel):
                    return module(*args)

            return run

        return {"SDPA": Side(lambda: module(*args)), **{name: Side(by(kernel)) for name, kernel in KERNELS.items()}}

    def inductor(self, module: nn.Module, args: tuple[Any, ...], *, overhead: bool = True) -> dict[str, Side]:
        """What torch.compile makes of it. `overhead`: with mode "reduce-overhead" as well."""
        if self.peers != "all":
            return {}
        found = {"Inductor": Side(first_call(torch.compile(module, dynamic=False), args))}
        if self.device == "cuda" and overhead:
            # It records CUDA graphs of its own.
            found["reduce-overhead"] = Side(first_call(torch.compile(module, dynamic=False, mode="reduce-overhead"), args), recorded=False)
        return found

    def timed(self, sides: dict[str, Side]) -> tuple[dict[str, float], dict[str, str]]:
        return timing.measure(sides, self.device, self.rounds)


def first_call(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: function(*args)


def milliseconds(times: dict[str, float], name: str) -> str:
    return f"{times[name]:.4f}" if name in times else "-"


def best(times: dict[str, float], names: Iterable[str]) -> tuple[str, float]:
    return min(((n, times[n]) for n in names if n in times), key=lambda x: x[1], default=("-", NAN))


def ratio(times: dict[str, float], names: Iterable[str]) -> str:
    """The best of the peers, and its time over Kiln's; bold where Kiln is slower."""
    name, peer = best(times, names)
    if name == "-" or "kiln" not in times:
        return "-"
    value = f"{peer / times['kiln']:.2f}"
    return (f"**{value}**" if peer < times["kiln"] else value) + f" {name}"


def teraflops(flops: float, ms: float) -> str:
    return f"{flops / ms / 1e9:.4g}"
