"""What `kiln.compile` was given, checked: a module or program, and how it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram

from kiln._native import UsageError
from kiln.api import arguments, callables
from kiln.api.compiled import Compiled
from kiln.lowering import export_module, lower_module, scalars
from kiln.tracing import export
from kiln.tracing.sources import warn

if TYPE_CHECKING:
    from kiln.api.decoding import Decoder


@dataclass(frozen=True)
class CompileInput:
    """A module, or an exported program, and how it is called."""

    name: str = "program"
    #: A program that is exported already; else there is a module.
    program: ExportedProgram | None = None
    #: What is traced, and the example inputs of a call of it.
    module: torch.nn.Module | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    signature: inspect.Signature | None = None
    dynamic: export.Dynamic = None
    #: The module whose weights and state dict the compiled program has.
    weights_module: torch.nn.Module | None = None
    decoder: Decoder | None = None
    #: Positions of the flat arguments that are numbers and may become inputs.
    numbers: frozenset[int] = frozenset()

    @property
    def examples(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The example inputs of the user; None where the program has its own."""
        given = self.program is None and self.decoder is None
        return (self.args, self.kwargs) if given else None

    @property
    def original(self) -> Callable[[], Callable[..., Any]] | None:
        """Gives the module; None for a program."""
        module = self.module
        return None if module is None else lambda: module

    @property
    def interface(self) -> dict[str, Any]:
        """The keyword arguments of `lower_module.record` and `lower_module.read`."""
        return {"name": self.name, "signature": self.signature, "original": self.original}

    def record(
        self, device: str | torch.device | None
    ) -> tuple[lower_module.LoweredModule, Callable[[], lower_module.LoweredModule]] | None:
        """Its calls, recorded in one run (`lower_module.record`); None where it has to go through
        torch.export."""
        module, args, kwargs = self.module, self.args, self.kwargs
        if module is None or self.decoder is not None or self.dynamic or self.numbers:
            return None
        if not export.is_on(module, (args, kwargs), device):
            return None
        return lower_module.record(module, args, kwargs, **self.interface)

    def export(self) -> tuple[ExportedProgram, set[int]]:
        """Its program by torch.export, and which of its numbers are inputs."""
        if self.program is not None:
            return self.program, set()
        assert self.module is not None
        call = (self.module, self.args, self.kwargs, self.dynamic)
        if self.decoder is not None:
            return export.export(*call), set()
        return export_module.with_numbers(*call, set(self.numbers))


def check(
    given: Any,
    example_inputs: Any,
    kwargs: Mapping[str, Any] | None,
    dynamic: export.Dynamic,
    max_length: int | None,
    batch_size: int,
) -> CompileInput:
    """What the user gave, as `kiln.compile` takes it; raises `kiln.UsageError` and
    `kiln.InputError` for what does not fit together."""
    if isinstance(given, Compiled):
        given = given.call_spec.original() if given.call_spec.original is not None else given
    has_inputs = example_inputs is not None or bool(kwargs) or dynamic is not None
    if max_length is not None:
        if has_inputs:
            raise UsageError(
                "kiln.compile was given max_length and example inputs: leave out example_inputs "
                "and dynamic to compile a language model for generate, else max_length"
            )
        return _decoding_step(given, max_length, batch_size)
    if isinstance(given, ExportedProgram):
        if has_inputs:
            raise UsageError(
                "kiln.compile was given an exported program and example inputs or `dynamic`: a "
                "program has its own, so leave them out, or pass the module"
            )
        return CompileInput(program=given)
    return _module(given, example_inputs, kwargs, dynamic)


def _decoding_step(model: Any, max_length: int, batch_size: int) -> CompileInput:
    """A language model as a step of `Compiled.generate`."""
    from kiln.api import decoding

    step = decoding.step(model, batch_size, max_length)
    example_inputs, dynamic = decoding.examples(step)
    args, kwargs = arguments.of_examples(example_inputs)
    return CompileInput(
        type(model).__name__,
        None,
        step,
        args,
        kwargs,
        inspect.signature(step.forward),
        dynamic,
        model,
        decoding.Decoder(model, batch_size, max_length),
    )


def _module(
    given: Any, example_inputs: Any, named: Mapping[str, Any] | None, dynamic: export.Dynamic
) -> CompileInput:
    """A module or another callable, with its example inputs."""
    module = callables.module_of(given)
    name = callables.name_of(module)
    if example_inputs is None and named is None:
        raise UsageError(
            f"kiln.compile was given {callables.a(given)} without example inputs: pass a tuple of "
            "its arguments, or a dict of them by name"
        )
    args, kwargs = arguments.of_examples(example_inputs, named)
    signature = inspect.signature(module.forward)
    arguments.check(signature, name, args, kwargs)
    numbers = scalars.number_inputs(dynamic, signature, args, kwargs)
    export.check((args, kwargs))
    hooked = callables.hooked(module)
    if hooked:
        warn(
            f"hooks of {', '.join(hooked[:4])} are traced into the program, so that what they do "
            "beyond tensors does not happen at calls: hooks on the compiled program do"
        )
    return CompileInput(
        name,
        None,
        module,
        args,
        kwargs,
        signature,
        dynamic,
        module,
        None,
        frozenset(numbers),
    )
