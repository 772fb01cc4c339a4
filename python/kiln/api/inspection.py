"""What can be asked of a compiled program: its sizes, plans, reasons, times and memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from kiln._native import Engine, InputError, UsageError
from kiln.api import arguments
from kiln.lowering.call_spec import CallSpec

if TYPE_CHECKING:
    from kiln.api.decoding import Decoder
    from kiln.lowering.split_program import SplitProgram
    from kiln.reports.bench import Table
    from kiln.reports.report import Report

#: Sizes to compile ahead: sizes by symbol, sizes in the symbols' order, or example inputs.
Sizes = Mapping[str, int] | Sequence[int] | Sequence[Any]


class Inspection:
    """The part of `Compiled` that answers questions, compiles ahead, saves and times."""

    engine: Engine | SplitProgram
    call_spec: CallSpec
    device: str
    #: Seconds of what came before the engine, by stage.
    seconds: dict[str, float]
    _decoder: Decoder | None
    #: Makes an engine for artifacts, where this one gives results in another order of memory.
    _artifact_engine: Callable[[], Engine] | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The leaves of a call, in the order of the program's inputs."""
        spec = self.call_spec
        if spec.in_spec is not None:
            return arguments.flatten(spec.in_spec, spec.signature, args, kwargs)
        if kwargs:
            names = ", ".join(kwargs)
            raise InputError(f"the program was called with keywords {names}: give positions")
        return list(args)

    @property
    def symbols(self) -> list[str]:
        """The names of the symbols that sizes depend on.

        >>> import torch, kiln
        >>> relu = kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3, 4),), dynamic=True)
        >>> len(relu.symbols)
        2
        """
        return list(self.call_spec.symbols)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """The buffers that the program writes to, by name: the module's own tensors, or those of
        the program where it came from a file.

        >>> import torch, kiln
        >>> kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3),)).state
        {}
        """
        known = self.call_spec.state
        # Of a file only the engine knows, which is a native one.
        return self.engine.state() if known is None else dict(known)  # type: ignore[union-attr]

    def warm(self, sizes: Sizes) -> None:
        """Compiles for these sizes now: by symbol, in the symbols' order, or as example inputs.

        >>> import torch, kiln
        >>> relu = kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3, 4),), dynamic=True)
        >>> relu.warm((2, 128))
        """
        self.engine.warm(self._sizes(sizes))

    def _sizes(self, sizes: Sizes) -> dict[str, int]:
        symbols = self.symbols
        if isinstance(sizes, Mapping):
            return {str(k): int(v) for k, v in sizes.items()}
        if all(type(s) is int for s in sizes):
            if len(sizes) != len(symbols):
                raise UsageError(
                    f"{len(sizes)} sizes for {len(symbols)} symbols: give one for each of "
                    f"{', '.join(symbols) or 'none'}"
                )
            return dict(zip(symbols, sizes, strict=True))
        args, kwargs = arguments.of_examples(sizes)
        return self.sizes(*args, **kwargs)

    def sizes(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """The sizes of the symbols for these inputs.

        >>> import torch, kiln
        >>> relu = kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3, 4),), dynamic=True)
        >>> sorted(relu.sizes(torch.ones(5, 6)).values())
        [5, 6]
        """
        return self.call_spec.sizes_of(self._flatten(args, kwargs))

    def explain(self, sizes: Sizes | None = None) -> Report:
        """What was fused, why, and at what predicted cost.

        >>> import torch, kiln
        >>> report = kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3),)).explain()
        >>> len(report.kernels)
        1
        """
        from kiln.lowering.split_program import SplitProgram
        from kiln.reports.report import Report

        if isinstance(self.engine, SplitProgram):
            return Report.of_pieces(self.engine.parts)
        return Report.of_engine(self.engine, None if sizes is None else self._sizes(sizes))

    def bindings(self) -> list[dict[str, Any]]:
        """The sizes that were compiled: of each its hits, the calls that were served eagerly before
        it was ready, seconds of compilation (`compile_s`) and of its stages (`timings`), bytes of
        its own, and bytes of what others share with it (`shared_bytes`). `Compiled.bytes` counts
        what is shared once. `threads` has the seconds that all threads together generated code
        (`generating`) and assembled it (`assembling`), within the stage `codegen`.

        >>> import torch, kiln
        >>> relu = kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3, 4),), dynamic=True)
        >>> [sorted(binding["sizes"].values()) for binding in relu.bindings()]
        [[3, 4]]
        """
        return self.engine.bindings()

    def bytes(self) -> int:
        """Bytes of all bindings: folded and packed weights, copies of parameters, and memory for
        intermediate results, which they share, and what each has of its own.

        >>> import torch, kiln
        >>> kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3, 4),)).bytes()
        0
        """
        return self.engine.bytes()

    @property
    def timings(self) -> dict[str, float]:
        """Seconds by stage, in their order; from `specialise` on of the sizes that were used last.

        `export` and `functional` are torch's (zero for a program that is exported and functional),
        `program` hands it over, `specialise` puts in the sizes, `plan` decides what is fused,
        `lower` and `codegen` make code of it, and `load` folds and packs weights. On a GPU the
        driver assembles the code within `codegen`.

        >>> import torch, kiln
        >>> relu = kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3),))
        >>> list(relu.timings)[:5]
        ['export', 'functional', 'program', 'specialise', 'plan']
        """
        bindings = self.engine.bindings()
        last = bindings[-1].get("timings", {}) if bindings else {}
        return {**self.seconds, **last}

    def refresh(self) -> None:
        """Takes up changed weights: needed where `options` say that they are frozen, after writing
        to a weight that was folded or packed.

        >>> import torch, kiln
        >>> layer = torch.nn.Linear(2, 2).eval()
        >>> compiled = kiln.compile(layer, (torch.ones(1, 2),))
        >>> with torch.no_grad():
        ...     _ = layer.weight.zero_(), layer.bias.zero_()
        >>> compiled.refresh()
        >>> compiled(torch.ones(1, 2))
        tensor([[0., 0.]])
        """
        self.engine.refresh()

    def save(self, path: str | os.PathLike[str], sizes: Sizes | None = None) -> None:
        """Writes an artifact (`.kiln`), which `kiln.load` and the command `kiln` read.

        `sizes`: what to compile for where sizes are dynamic; the last used ones if left out.
        """
        engine = self.engine if self._artifact_engine is None else self._artifact_engine()
        engine.save(os.fspath(path), None if sizes is None else self._sizes(sizes))

    def bench(
        self,
        *args: Any,
        against: Sequence[str] = ("eager", "inductor"),
        repetitions: int = 50,
        seconds: float = 5.0,
        **kwargs: Any,
    ) -> Table:
        """Times the program beside others in the same run.

        `args`, `kwargs`: the inputs; the example inputs if there are none. `against`: "eager",
        "inductor", or a callable's name and the callable. `repetitions`: samples of each, fewer
        where they would take more than `seconds` in all; compilation is not among them.

        >>> import torch, kiln
        >>> relu = kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3),))
        >>> [row.name for row in relu.bench(against=("eager",), repetitions=3).rows]
        ['kiln', 'eager']
        """
        from kiln.reports import bench

        if self._decoder is not None:
            raise UsageError(
                f"each call of {self.call_spec.name} goes on where the last one stopped, until its "
                "caches are full: time generate, whose calls begin anew"
            )
        if not args and not kwargs:
            if self.call_spec.examples is None:
                raise UsageError("the program has no example inputs: pass the inputs to bench")
            args, kwargs = self.call_spec.examples
        bench.refuse_processes(self.engine.fallbacks())
        peers = bench.peers(self.call_spec.original, against)
        return bench.measure(
            {"kiln": self, **peers}, args, kwargs, self.device, repetitions, seconds
        )
