"""`kiln.compile`: from a module, a function or an exported program to what runs it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from kiln import options as known_options
from kiln._native import Engine, UnsupportedError, UsageError
from kiln.api import compile_input
from kiln.api.compile_input import CompileInput
from kiln.api.compiled import Compiled
from kiln.api.inspection import Sizes
from kiln.lowering import complex_tensors, lower_module
from kiln.lowering.lower_module import LoweredModule
from kiln.pieces import log
from kiln.tracing import export
from kiln.tracing.sources import of_live

if TYPE_CHECKING:
    from kiln.lowering.split_program import SplitProgram


def compile(
    module_or_program: torch.nn.Module | Callable[..., Any] | ExportedProgram,
    example_inputs: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: export.Dynamic = None,
    device: str | torch.device | None = None,
    options: Mapping[str, Any] | None = None,
    warm: Iterable[Sizes] | None = None,
    max_length: int | None = None,
    batch_size: int = 1,
) -> Compiled:
    """Compiles a module, a function, or a program of `torch.export`.

    `example_inputs`: a tuple of the arguments, or a dict of them by name; `kwargs`: more by name.
    `dynamic`: None or False for static shapes, True for dynamic ones wherever the module allows
    them, or as `torch.export` takes `dynamic_shapes`. `device`: moves the program there first.
    `options`: see `kiln.options`. It is compiled now for the sizes of the example inputs, machine
    code of the device included, so that what cannot be compiled is told here; and for those of
    `warm`. Other sizes are compiled at their first call.

    A function may use modules, of its closure or by name: their weights are the program's. Methods
    and `functools.partial` are functions too.

    A part that Kiln refuses runs eagerly in place, as in torch.compile, and `explain` names it;
    with `options={"fallback": "error"}` it is an error. Such a program cannot be saved.

    `max_length`: compiles a causal language model of transformers for `Compiled.generate`, with
    caches of so many tokens, for `batch_size` texts at once. There are no example inputs then.

    Gradients are off. Buffers that the module writes to are written in place: the compiled program
    and the module share them, as they share all weights. Weights that are written to in place are
    taken up at the next call (`options={"weights": "frozen"}` leaves out to look; then
    `Compiled.refresh` does it); after `p.data = other` and the like compile again.

    >>> import torch, kiln
    >>> double = kiln.compile(lambda x: x * 2, (torch.ones(3),))
    >>> double(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-2.,  0.,  2.])
    """
    settings = known_options.check(options, backend=False)
    source = compile_input.check(
        module_or_program, example_inputs, kwargs, dynamic, max_length, batch_size
    )
    call: dict[str, Any] = {"device": device, "options": options, "warm": list(warm or ())}
    if max_length is not None:
        call.update(max_length=max_length, batch_size=batch_size)
    else:
        call.update(dynamic=dynamic)
    return _Compilation(source, settings, call).run()


@dataclass(frozen=True)
class _Traced:
    """A program that was traced, and what goes with it."""

    lowered: LoweredModule | SplitProgram
    #: Writes it without outputs in another order of their dimensions, for artifacts.
    write_row_major: Callable[[], LoweredModule]
    #: Gives a module that computes it.
    make_module: Callable[[], torch.nn.Module]
    #: Kinds of the flat arguments that are numbers and inputs, by their positions.
    numbers: dict[int, type] = field(default_factory=dict)
    #: What serves calls while sizes are compiled.
    eager: Callable[..., Any] | None = None


class _Compilation:
    """One call of `kiln.compile`: traces the module, makes an engine of it, and compiles for the
    sizes that are asked for."""

    def __init__(
        self, source: CompileInput, settings: Mapping[str, Any], call: dict[str, Any]
    ) -> None:
        """`settings`: the options, checked. `call`: the keywords of `kiln.compile` with which the
        same module is compiled again."""
        self.source, self.settings, self.call = source, settings, call
        self.device: str | torch.device | None = call["device"]
        self.runs_eagerly_meanwhile = settings.get("while_compiling") == "eager"
        self.clock = _Clock()

    def run(self) -> Compiled:
        """The compiled program."""
        recording = self.source.record(self.device)
        self.clock.lap("export")
        if recording is not None:
            self.clock.lap("functional")
            module = self.source.module
            assert module is not None, "what is recorded is a module"
            try:
                return self._compiled(_Traced(*recording, lambda: module, eager=module))
            except UnsupportedError as error:
                log.info("%s goes through torch.export: %s", self.source.name, error)
                self.clock = _Clock()
        exported, numbers = self.source.export()
        self.clock.lap("export")
        traced = self._lowered(exported, numbers)
        self.clock.lap("functional")
        compiled = self._compiled(traced)
        if self.call.get("dynamic"):
            compiled.traces_small_sizes(self._recompile_small_sizes)
        return compiled

    def _lowered(self, exported: ExportedProgram, numbers: set[int]) -> _Traced:
        """The program of torch.export, functional, on the device, and lowered.

        `numbers`: positions of the flat arguments that are numbers and inputs."""
        source = self.source
        exported = export.functional(exported)
        if self.device is not None:
            exported = export.moved(exported, str(self.device))
        eager = None
        if self.runs_eagerly_meanwhile:
            is_there = source.module is not None and self.device is None
            eager = source.module if is_there else exported.module()
        lowered, program = lower_module.read_or_split(exported, self.settings, **source.interface)
        if eager is not None and lowered.call_spec.state and eager is not source.module:
            raise UsageError(
                "while_compiling='eager' runs the module meanwhile, and this program writes to "
                "buffers: pass the module itself, on the device where it is to run"
            )
        leaves = pytree.tree_leaves((source.args, source.kwargs))
        return _Traced(
            lowered,
            lambda: lower_module.read(program, ordered=False, **source.interface),
            exported.module,
            {i: type(leaves[i]) for i in sorted(numbers)},
            eager,
        )

    def _compiled(self, traced: _Traced) -> Compiled:
        """The program with its engine, compiled for the sizes that are asked for."""
        lowered, source = traced.lowered, self.source
        engine: Engine | SplitProgram
        checks_weights, artifact_engine = False, None
        if isinstance(lowered, LoweredModule):
            options = known_options.for_engine(self.settings, lowered.call_spec.device)
            program = lowered.program
            engine = complex_tensors.wrapped(
                _engine(lowered, options), program.has_complex_inputs, program.complex_outputs
            )
            checks_weights = bool(lowered.params) and known_options.is_checked(self.settings)
            if lowered.call_spec.orders:

                def artifact_engine() -> Engine:
                    return _engine(traced.write_row_major(), options)

        else:
            engine = lowered
        self.clock.lap("program")
        spec = lowered.call_spec
        examples = spec.examples if source.examples is None else source.examples
        compiled = Compiled(
            engine,
            replace(spec, numbers=traced.numbers, examples=examples),
            checks_weights=checks_weights,
            eager=traced.eager if self.runs_eagerly_meanwhile else None,
            decoder=source.decoder,
            module=source.weights_module,
            make_module=traced.make_module,
            artifact_engine=artifact_engine,
            recompile=None if source.module is None else self._recompile,
        )
        compiled.seconds = self.clock.laps
        self._warm(compiled, spec.examples)
        if log.isEnabledFor(logging.DEBUG) and compiled.bindings():
            log.debug("%s\n%s", compiled, compiled.explain())
        return compiled

    def _warm(self, compiled: Compiled, examples: Any) -> None:
        """Compiles for the sizes of the example inputs, and for those of `warm`."""
        if self.runs_eagerly_meanwhile or self.source.decoder is not None:
            # Sizes are compiled as they come: meanwhile eager runs, and a decoder has its own.
            pass
        elif examples is not None:
            args, kwargs = examples
            try:
                compiled.engine.warm(compiled.sizes(*args, **kwargs))
            except UnsupportedError as error:
                raise UnsupportedError(of_live(str(error))) from None
        elif not compiled.symbols:
            compiled.engine.warm({})
        for sizes in self.call["warm"]:
            compiled.warm(sizes)

    # The same module again

    def _recompile(self, examples: Any, device: str | None) -> Compiled:
        """Compiles the module as it is now, for example inputs `(args, kwargs)`, on a device."""
        call = {**self.call, "device": device}
        if self.source.decoder is None:
            args, kwargs = examples
            call.update(example_inputs=args, kwargs=kwargs)
        return compile(self._module(), **call)

    def _recompile_small_sizes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Compiled:
        """Compiles for arguments with sizes of 0 and 1, which are static there."""
        dynamic = export.with_hints(self.call["dynamic"])
        options = self.call["options"]
        return compile(self._module(), args, kwargs=kwargs, dynamic=dynamic, options=options)

    def _module(self) -> torch.nn.Module:
        module = self.source.weights_module
        assert module is not None, "a program that came without a module is not compiled again"
        return module


def _engine(lowered: LoweredModule, options: dict[str, Any]) -> Engine:
    """The native engine of a program; complex tensors are pairs at its edges."""
    params = [complex_tensors.parts(p) for p in lowered.params]
    return Engine(lowered.program.text, params, options)


class _Clock:
    """Seconds of stages that follow each other."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Ends a stage."""
        now = time.perf_counter()
        self.laps[stage], self._last = now - self._last, now
