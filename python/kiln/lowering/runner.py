"""Runs one graph of AOT autograd: by an engine, or by PyTorch.

Each set of parameters has an engine of its own, which is dropped when one of them is freed.
"""

from __future__ import annotations

import logging
import operator
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from kiln import _native, pieces
from kiln import options as known_options
from kiln._native import DeviceError, Engine, InputError, KilnError, UsageError
from kiln.lowering import complex_tensors, views
from kiln.lowering.program import Program
from kiln.pieces import Boxed


class Versions:
    """Version counters of inputs that are wrapper subclasses, such as DTensor.

    AOT autograd passes on the tensors that they wrap. A write to a wrapper counts in its own
    version counter alone.
    """

    def __init__(self, example_inputs: Sequence[Any]) -> None:
        wrap = is_traceable_wrapper_subclass
        self.positions = [i for i, t in enumerate(example_inputs) if wrap(t)]
        #: Those of the current call.
        self.current: list[int] = []

    def tracking(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `run` so that the versions of the wrappers are read before each call."""
        if not self.positions:
            return run

        def take_versions_and_run(*args: Any) -> Any:
            wrappers = (args[i] for i in self.positions)
            self.current = [0 if t.is_inference() else t._version for t in wrappers]
            return run(*args)

        return take_versions_and_run


def _item_getter(positions: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function that picks the items at these positions out of a list."""
    if len(positions) == 1:
        (only,) = positions
        return lambda items: (items[only],)
    return operator.itemgetter(*positions) if positions else lambda _: ()


def _identities(items: list[Any], positions: list[int]) -> Hashable:
    picked = [items[i] for i in positions]
    return tuple(map(id, picked)), tuple(map(torch.Tensor.data_ptr, picked))


#: Which tensors are at these positions, and where their memory is, as a key. Python takes about 25
#: microseconds for 200 of them; native code does the same without making objects.
_addresses: Callable[[list[Any], list[int]], Hashable]
_addresses = getattr(_native, "addresses", _identities)


class Runner:
    """Runs one graph: finds or makes the engine for the parameters of a call, and falls back to
    PyTorch."""

    def __init__(
        self,
        gm: fx.GraphModule,
        program: Program,
        tail: views.Tail | None,
        writes: bool,
        options: Mapping[str, Any],
        piece: pieces.Piece,
        versions: Versions,
    ) -> None:
        self.gm, self.program, self.tail, self.piece = gm, program, tail, piece
        self.versions = versions
        self.options = known_options.for_engine(options, program.device)
        self.strict = options.get("fallback") == "error"
        self.checks_weights = known_options.is_checked(options) and bool(program.params)
        #: Whether a run writes to inputs, so that it cannot be repeated.
        self.writes = writes
        self.static = [p for p in program.params if isinstance(p, int)]
        self.pick_static = _item_getter(self.static)
        self.pick_inputs = _item_getter(program.inputs)
        #: By identities and addresses of the parameters.
        self.bound_engines: dict[Hashable, BoundEngine] = {}
        #: The key of the parameters of the last call, and what ran it.
        self.key: Hashable = None
        self.current: BoundEngine | None = None
        #: Sizes for which the engine refused, and why.
        self.refused: dict[tuple[int, ...], str] = {}
        #: Whether the plan of the current engine is still to be logged.
        self.plan_unlogged = False

    def run(self, args: list[Any]) -> Sequence[Any]:
        if self.piece.state == "eager":
            return self.eagerly(args, self.piece.reason)
        key = _addresses(args, self.static)
        if self.current is None or key != self.key:
            try:
                self.bind(key, self.pick_static(args))
            except UsageError:
                raise
            except KilnError as error:
                return self.refuse(args, error)
        assert self.current is not None, "parameters are bound"
        engine = self.current.engine
        inputs = list(self.pick_inputs(args))
        if self.refused:
            why = self.refused.get(_sizes(inputs))
            if why is not None:
                return self.eagerly(args, why)
        try:
            if self.checks_weights:
                self.refresh_if_written(engine)
            outputs = engine.run(inputs)
        except InputError:
            # The writer refuses all other inputs that an engine does not take.
            raise
        except KilnError as error:
            return self.refuse(args, error)
        if outputs is None:
            return self.eagerly(args, "another thread compiles for these sizes")
        self.piece.runs.ran_compiled()
        if self.plan_unlogged:
            self.log_plan(engine)
        results = outputs if self.tail is None else self.tail(outputs, args)
        args.clear()
        return results

    def refresh_if_written(self, engine: Engine) -> None:
        """Has the engine fold and pack its parameters again if one was written to since the last
        call."""
        bound = self.current
        assert bound is not None, "an engine runs for bound parameters"
        if engine.changed() or bound.versions != self.versions.current:
            engine.refresh()
            bound.versions = self.versions.current

    def warm(self, args: list[Any], sizes: Mapping[str, int]) -> None:
        """Compiles for these sizes now. Of `args` only the parameters are read. A piece with sizes
        that depend on data is compiled at its first call."""
        self.bind(_addresses(args, self.static), self.pick_static(args))
        symbols = self.program.symbols
        if all(s in sizes for s in symbols):
            self.current.engine.warm({s: sizes[s] for s in symbols})  # type: ignore[union-attr]

    def bind(self, key: Hashable, static: Sequence[torch.Tensor]) -> None:
        """Makes the engine of these parameters the current one; compiles it if there is none."""
        found = self.bound_engines.get(key)
        if found is None:
            self.replace(static)
            tensors = iter(static)
            # The alias shares memory and version without keeping the parameter itself alive.
            params = [
                complex_tensors.parts(next(tensors).detach() if isinstance(p, int) else p)
                for p in self.program.params
            ]
            engine = complex_tensors.wrapped(
                Engine(self.program.text, params, self.options),
                self.program.has_complex_inputs,
                self.program.complex_outputs,
            )
            found = self.bound_engines[key] = BoundEngine(engine, static, _forget(self, key))
            self.piece.engines.append(engine)
            self.piece.state = "compiled"
            found.versions = self.versions.current
            self.plan_unlogged = pieces.log.isEnabledFor(logging.DEBUG)
        self.key, self.current = key, found

    def log_plan(self, engine: Engine) -> None:
        """Logs what was fused and why."""
        self.plan_unlogged = False
        where = f" at {self.piece.source}" if self.piece.source else ""
        pieces.log.debug("a piece%s is compiled\n%s\n%s", where, engine.text(), engine.plan())

    def replace(self, static: Sequence[torch.Tensor]) -> None:
        """Drops engines of the same parameters whose memory has changed."""
        for key, bound in list(self.bound_engines.items()):
            if bound.watches and all(w() is t for w, t in zip(bound.watches, static, strict=True)):
                self.drop(key)

    def drop(self, key: Hashable) -> None:
        """Drops an engine whose parameters were freed."""
        dropped = self.bound_engines.pop(key, None)
        if dropped is not None:
            self.piece.engines[:] = [e for e in self.piece.engines if e is not dropped.engine]
            if dropped is self.current:
                self.current, self.key = None, None

    def refuse(self, args: list[Any], error: KilnError) -> Sequence[Any]:
        """Runs a call by PyTorch that the engine refuses, and from now on calls of its sizes."""
        # The other classes come from compiling. A run that failed may have written already.
        ran = type(error) in (KilnError, DeviceError)
        if self.strict or (ran and self.writes):
            raise error
        sizes = _sizes(self.pick_inputs(args))
        # Where eager fails as well that is about the data, and its error is what callers know.
        outputs = self.eagerly(args, str(error))
        # Other sizes of the same graph may do.
        if sizes and self.bound_engines:
            self.refused[sizes] = str(error)
            self.piece.reason = str(error)
            pieces.log.warning("sizes %s run eagerly: %s", sizes, error)
        else:
            self.piece.refuse(str(error))
        return outputs

    def eagerly(self, args: list[Any], reason: str) -> Sequence[Any]:
        """Runs a call by PyTorch."""
        self.piece.runs.ran_eagerly(reason)
        inputs = list(args)
        args.clear()
        outputs: Sequence[Any] = self.gm.forward(*inputs)
        return outputs


class BoundEngine:
    """An engine, with weak references to the parameters that it is bound to."""

    def __init__(
        self,
        engine: Engine,
        static: Sequence[torch.Tensor],
        gone: Callable[[Any], None],
    ) -> None:
        self.engine = engine
        self.watches = [weakref.ref(t, gone) for t in static]
        #: Versions of wrapper subclasses at the last call.
        self.versions: list[int] = []


def _forget(runner: Runner, key: Hashable) -> Callable[[Any], None]:
    runner_ref = weakref.ref(runner)

    def gone(_: Any) -> None:
        live = runner_ref()
        if live is not None:
            live.drop(key)

    return gone


def _sizes(inputs: Sequence[Any]) -> tuple[int, ...]:
    return tuple(i for i in inputs if type(i) is int)


def boxed_runner(runner: Runner) -> Boxed:
    """A runner in the calling convention of AOT autograd."""

    def run(args: list[Any]) -> Sequence[Any]:
        return runner.run(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
