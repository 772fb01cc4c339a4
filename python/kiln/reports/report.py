"""What was fused and why, what runs eagerly and why, where a graph broke: the result of
`kiln.explain`.

A report is over pieces. A program of `kiln.compile` is one piece; what `torch.compile` traces can
be many, of which some run eagerly.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kiln import pieces
from kiln._native import Engine, KilnError, UsageError

#: Of a function without tensor operators, or one that was called within another transform.
_NOTHING = "dynamo found nothing to compile"


@dataclass(frozen=True)
class Kernel:
    """One fused kernel of a plan."""

    name: str
    kind: str
    #: What it computes, in order.
    nodes: list[str]
    #: Why it is one kernel.
    reason: str
    predicted_us: float | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    flops: int | None = None
    #: The piece that it is in.
    piece: int = 0

    @classmethod
    def read(cls, entry: dict[str, Any], piece: int) -> Kernel:
        """From an entry of a report's `kernels`.

        >>> Kernel.read({"name": "k0", "kind": "gemm", "nodes": ["linear"]}, 0).kind
        'gemm'
        """
        numbers = ("predicted_us", "bytes_read", "bytes_written", "flops")
        reason = entry.get("reason") or ""
        return cls(
            str(entry["name"]),
            str(entry["kind"]),
            [str(node) for node in entry.get("nodes", [])],
            reason if isinstance(reason, str) else json.dumps(reason),
            **{n: entry.get(n) for n in numbers},
            piece=piece,
        )


@dataclass(frozen=True)
class Part:
    """One piece of a report."""

    #: `compiled`, `eager`, or `waiting` if it was not called.
    state: str
    #: The user's line where it starts.
    source: str = ""
    #: Why it runs eagerly.
    reason: str = ""
    #: Why dynamo ended it, and at which of the user's lines; empty at the end of a function.
    break_reason: str = ""
    break_source: str = ""
    #: The ranges of its sizes.
    symbols: dict[str, Any] = field(default_factory=dict)
    #: How its calls ran, of each model; empty where they are not the user's.
    runs: tuple[pieces.Calls, ...] = ()
    #: The sizes that were compiled.
    bindings: list[dict[str, Any]] = field(default_factory=list)
    #: The engine's report, terminal text and page.
    plan: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    page: str = ""
    engine: Engine | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of_engine(cls, engine: Engine, sizes: dict[str, int] | None = None, **more: Any) -> Part:
        """What an engine says of itself for these sizes, the last used ones if left out."""
        return cls(
            "compiled",
            bindings=engine.bindings(),
            plan=json.loads(engine.report(sizes)),
            text=_for_python(engine.text(sizes)),
            page=engine.html(sizes),
            engine=engine,
            **more,
        )


#: What ends a report of the command: its flags.
_FLAGS = re.compile(r"\n--kernel NAME: .*\Z", re.DOTALL)
#: What follows the sentence that a prediction is not for this machine: commands that mend it.
_CALIBRATION = re.compile(r"(, not for this one);\s+`kiln doctor --calibrate.*?result\n", re.DOTALL)


def _for_python(text: str) -> str:
    """The command's report with what can be asked of a `Report` in place of flags.

    >>> _for_python("x\\n\\n--kernel NAME: one kernel").splitlines()[-1]
    'report.kernels: each kernel; report.why(a, b): why two parts are fused or not'
    """
    questions = "\nreport.kernels: each kernel; report.why(a, b): why two parts are fused or not\n"
    return _CALIBRATION.sub(r"\1\n", _FLAGS.sub(questions, text))


class Report:
    """What was fused, why, and at what predicted cost. Prints as text; a notebook shows a page.

    >>> import torch, kiln
    >>> report = kiln.explain(torch.nn.ReLU().eval(), torch.ones(3))
    >>> len(report.kernels), report.graph_breaks
    (1, [])
    """

    def __init__(
        self,
        parts: list[Part],
        *,
        dynamo: bool,
        sizes: dict[str, int] | None = None,
        calls: Sequence[tuple[str, pieces.Calls]] = (),
    ) -> None:
        self.parts = parts
        #: How calls of the model ran before, by the user's line where each piece of it starts.
        self.calls = list(calls)
        self._dynamo = dynamo
        self._sizes = sizes

    @classmethod
    def of_engine(cls, engine: Engine, sizes: dict[str, int] | None = None) -> Report:
        """The report of one program."""
        return cls([Part.of_engine(engine, sizes)], dynamo=False, sizes=sizes)

    @classmethod
    def of_pieces(
        cls,
        found: list[pieces.Piece],
        *,
        called: Mapping[pieces.Piece, Sequence[pieces.Calls]] | None = None,
        earlier: Iterable[tuple[pieces.Piece, pieces.Calls]] = (),
    ) -> Report:
        """The report of what dynamo handed over.

        `called`: how the user's calls of the pieces ran. `earlier`: other pieces of the same model,
        and how its calls of them ran."""
        parts: list[Part] = []
        for piece in found:
            about: dict[str, Any] = {
                "source": piece.source,
                "reason": piece.reason,
                "break_reason": piece.break_reason,
                "break_source": piece.break_source,
                "symbols": piece.symbols,
            }
            start = len(parts)
            if piece.state == "compiled":
                parts += [Part.of_engine(engine, **about) for engine in piece.engines]
            else:
                parts.append(Part(piece.state, **about))
            if len(parts) > start:
                runs = tuple(replace(calls) for calls in (called or {}).get(piece, ()))
                parts[start] = replace(parts[start], runs=runs)
        return cls(
            parts,
            dynamo=True,
            calls=[(p.source, replace(runs)) for p, runs in earlier if runs.last != "waiting"],
        )

    @property
    def kernels(self) -> list[Kernel]:
        """All kernels, in order."""
        return [
            Kernel.read(entry, i)
            for i, part in enumerate(self.parts)
            for entry in part.plan.get("kernels", [])
        ]

    @property
    def fallbacks(self) -> list[str]:
        """Operators that PyTorch runs, one for each call, within compiled pieces."""
        return [str(op) for part in self.parts for op in part.plan.get("fallback", [])]

    @property
    def plans(self) -> list[str]:
        """The plan of each compiled piece as text."""
        return [p.engine.plan(self._sizes) for p in self.parts if p.engine is not None]

    @property
    def eager(self) -> list[Part]:
        """The pieces that run eagerly."""
        return [part for part in self.parts if part.state != "compiled"]

    @property
    def graph_breaks(self) -> list[tuple[str, str]]:
        """Where dynamo could not trace on: the user's line, and the reason."""
        breaks = [(p.break_source, p.break_reason) for p in self.parts if p.break_reason]
        return list(dict.fromkeys(breaks))

    def why(self, a: str, b: str) -> str:
        """Why `a` and `b` (kernels, or values by name) are in one kernel, or are not."""
        for inner, outer in ((a, b), (b, a)):
            if inner == outer or inner.startswith(f"{outer}."):
                message = f"`{inner}` is a part of `{outer}`"
                message = f"both names are `{a}`" if inner == outer else message
                raise UsageError(f"{message}: name two parts that share nothing")
        answers = []
        for part in self.parts:
            if part.engine is not None:
                try:
                    answers.append(part.engine.why(a, b, self._sizes))
                except KilnError as error:
                    problem = error
        if answers:
            return "\n".join(answers)
        if not any(part.engine for part in self.parts):
            raise UsageError("nothing was compiled: the report's `eager` says why")
        places = [self._pieces_with(name) for name in (a, b)]
        for name, indices in zip((a, b), places, strict=True):
            if not indices and all(places[:1]):
                raise UsageError(str(problem).replace(f"`{a}`", f"`{name}`"))
        if not all(places):
            raise problem
        piece_a, piece_b = places[0][0], places[1][0]
        lines = [f"{a} is in piece {piece_a}, {b} in piece {piece_b}: no kernel has parts of both."]
        low, high = sorted((piece_a, piece_b))
        for i, (heading, part) in enumerate(self._headings()):
            if low < i < high or (low <= i < high and part.break_reason):
                reason = part.break_reason.partition("\n")[0]
                lines.append(f"  between them: {reason or heading}")
        return "\n".join(lines)

    def _pieces_with(self, name: str) -> list[int]:
        """The pieces that know a name."""
        found = []
        for i, part in enumerate(self.parts):
            if part.engine is not None:
                try:
                    part.engine.why(name, name, self._sizes)
                except KilnError:
                    continue
                found.append(i)
        return found

    def why_not(self, a: str, b: str) -> str:
        """Why `a` and `b` are not in one kernel; the same question as `why`."""
        return self.why(a, b)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data. Of one program it is what `kiln explain --json` writes; of
        dynamo's pieces it has also `pieces` and `graph_breaks`, and sums over the pieces."""
        if not self._dynamo:
            return self.parts[0].plan
        plans = [part.plan for part in self.parts]
        hidden = ("engine", "text", "page", "plan")
        described = [
            {k: v for k, v in vars(part).items() if k not in hidden} for part in self.parts
        ]
        for part in described:
            part["runs"] = [runs.to_dict() for runs in part["runs"]]
        return {
            "kernels": [asdict(kernel) for kernel in self.kernels],
            "fallback": self.fallbacks,
            "nodes": sum(plan.get("nodes", 0) for plan in plans),
            "lower_bound_us": sum(plan.get("lower_bound_us") or 0 for plan in plans),
            "predicted_us": sum(plan.get("predicted_us") or 0 for plan in plans),
            "roofline_us": sum(plan.get("roofline_us") or 0 for plan in plans),
            "pieces": described,
            "graph_breaks": [{"source": s, "reason": r} for s, r in self.graph_breaks],
            "calls": [{"source": source, **runs.to_dict()} for source, runs in self.calls],
        }

    def to_json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict())

    def _headings(self) -> Iterator[tuple[str, Part]]:
        for i, part in enumerate(self.parts):
            at = f" at {part.source}" if part.source else ""
            how = {"eager": "runs eagerly", "waiting": "was not called"}.get(part.state, "compiled")
            why = f": {part.reason}" if part.reason else ""
            yield f"piece {i}{at}: {how}{why}", part

    def _earlier(self) -> list[str]:
        """How calls of the model ran before, a line each."""
        return [f"at {source}: {runs}" if source else str(runs) for source, runs in self.calls]

    def __str__(self) -> str:
        if not self._dynamo:
            return self.parts[0].text
        if not self.parts:
            return _NOTHING
        lines = []
        for heading, part in self._headings():
            lines.append(heading)
            lines += [f"  calls       {runs}" for runs in part.runs]
            for name, range_ in part.symbols.items():
                high = "" if range_["max"] is None else range_["max"]
                lines.append(
                    f"  size {name} in {range_['min']}..{high}, {range_['hint']} at tracing"
                )
            if part.text:
                lines += ["  " + line if line else "" for line in part.text.splitlines()]
            if part.break_reason:
                at = f" at {part.break_source}" if part.break_source else ""
                lines.append(f"  graph break{at}: {part.break_reason}")
        if self.calls:
            lines += ["calls so far", *(f"  {line}" for line in self._earlier())]
        return "\n".join(lines)

    def __repr__(self) -> str:
        n, eager, breaks = len(self.kernels), len(self.eager), len(self.graph_breaks)
        return f"Report({n} kernels, {eager} pieces run eagerly, {breaks} graph breaks)"

    def _repr_html_(self) -> str:
        shown = [f"<p>{_NOTHING}</p>"] if self._dynamo and not self.parts else []
        for heading, part in self._headings():
            if self._dynamo:
                shown.append(f"<p>{html.escape(heading)}</p>")
            shown += [f"<p>calls: {html.escape(str(runs))}</p>" for runs in part.runs]
            if part.page:
                # A page of its own, so that its style stays within.
                page = html.escape(part.page, quote=True)
                style = "width:100%;height:40em;border:0"
                shown.append(f'<iframe srcdoc="{page}" style="{style}"></iframe>')
            if part.break_reason:
                text = f"graph break at {part.break_source}: {part.break_reason}"
                shown.append(f"<p>{html.escape(text)}</p>")
        if self.calls:
            items = "".join(f"<li>{html.escape(line)}</li>" for line in self._earlier())
            shown.append(f"<p>calls so far</p><ul>{items}</ul>")
        return "\n".join(shown)
