"""`kiln.compile`: from a module, a function or an exported program to what runs it."""

from __future__ import annotations

import inspect
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from kiln import _native
from kiln import options as known_options
from kiln._native import Engine, UnsupportedError, UsageError
from kiln.api import arguments, callables
from kiln.api.compiled import Compiled, Sizes
from kiln.lowering import complex_tensors, lower_module, scalars
from kiln.lowering.lower_module import LoweredModule
from kiln.pieces import log
from kiln.tracing import export, side_effects
from kiln.tracing.sources import of_live

if TYPE_CHECKING:
    from kiln.api.decoding import Decoder
    from kiln.lowering.split_program import Pieces


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
    given = known_options.check(options, backend=False)
    clock = _Clock()
    subject = _subject(module_or_program, example_inputs, kwargs, dynamic, max_length, batch_size)

    def again(examples: Any, device: str | None) -> Compiled:
        """The same of the module as it is then."""
        at: dict[str, Any] = {"device": device, "options": options, "warm": warm}
        if max_length is not None:
            return compile(subject.shared, max_length=max_length, batch_size=batch_size, **at)
        args, named = examples
        return compile(subject.shared, args, kwargs=named, dynamic=dynamic, **at)

    def of_sizes(args: tuple[Any, ...], named: dict[str, Any]) -> Compiled:
        """The same for arguments with sizes of 0 and 1, which are static there."""
        at: dict[str, Any] = {"dynamic": export.with_hints(dynamic), "options": options}
        return compile(subject.shared, args, kwargs=named, **at)

    sizes = list(warm or ())
    recorded = subject.recorded(device)
    clock.lap("export")
    if recorded is not None:
        clock.lap("functional")
        try:
            return _finished(subject, recorded, given, sizes, clock, again)
        except UnsupportedError as error:
            log.info("%s goes through torch.export: %s", subject.name, error)
            clock = _Clock()
    exported, numbers = subject.exported()
    clock.lap("export")
    traced = _of_exported(subject, exported, numbers, device, given)
    clock.lap("functional")
    compiled = _finished(subject, traced, given, sizes, clock, again)
    if dynamic and subject.module is not None:
        compiled.traces_small_sizes(of_sizes)
    return compiled


@dataclass(frozen=True)
class _Traced:
    """A program that was traced, and what goes with it."""

    read: LoweredModule | Pieces
    #: Writes it without outputs in another order of their dimensions, for artifacts.
    plainly: Callable[[], LoweredModule]
    #: Gives a module that computes it.
    make_module: Callable[[], Callable[..., Any]]
    #: Kinds of the flat arguments that are numbers and inputs, by their positions.
    numbers: dict[int, type] = field(default_factory=dict)
    #: What serves calls while sizes are compiled.
    eager: Callable[..., Any] | None = None


def _of_exported(
    subject: _Subject,
    exported: ExportedProgram,
    numbers: set[int],
    device: str | torch.device | None,
    given: Mapping[str, Any],
) -> _Traced:
    """The program of torch.export, functional and on the device."""
    exported = export.functional(exported)
    if device is not None:
        exported = export.moved(exported, str(device))
    module = subject.module
    eager = None
    if given.get("while_compiling") == "eager":
        eager = module if module is not None and device is None else exported.module()
    about: dict[str, Any] = {"name": subject.name, "signature": subject.signature}
    read, program = _read(exported, given, original=subject.original, **about)
    if eager is not None and read.face.state and eager is not module:
        raise UsageError(
            "while_compiling='eager' runs the module meanwhile, and this program writes to "
            "buffers: pass the module itself, on the device where it is to run"
        )
    leaves = pytree.tree_leaves((subject.args, subject.kwargs))
    return _Traced(
        read,
        lambda: lower_module.read(program, ordered=False, **about),
        exported.module,
        {i: type(leaves[i]) for i in sorted(numbers)},
        eager,
    )


def _finished(
    subject: _Subject,
    traced: _Traced,
    given: Mapping[str, Any],
    warm: list[Sizes],
    clock: _Clock,
    again: Callable[[Any, str | None], Compiled],
) -> Compiled:
    """Compiles a program for the sizes that are asked for."""
    read = traced.read
    engine: Engine | Pieces
    plain = None
    if isinstance(read, LoweredModule):
        for_engine = known_options.for_engine(given, read.face.device)
        params = [complex_tensors.parts(p) for p in read.params]
        made = Engine(read.program.text, params, for_engine)
        engine = complex_tensors.wrapped(
            made, read.program.takes_complex, read.program.complex_outputs
        )
        checked = bool(read.params) and known_options.is_checked(given)
        if read.face.orders:

            def plain() -> Engine:
                return Engine(traced.plainly().program.text, params, for_engine)

    else:
        engine, checked = read, False
    clock.lap("program")
    eager = traced.eager if given.get("while_compiling") == "eager" else None
    examples = read.face.examples if subject.examples is None else subject.examples
    compiled = Compiled(
        engine,
        replace(read.face, numbers=traced.numbers, examples=examples),
        checked=checked,
        eager=eager,
        decoder=subject.decoder,
        module=subject.shared,
        make_module=traced.make_module,
        plain=plain,
        again=None if subject.module is None else again,
    )
    compiled.seconds = clock.laps
    if eager is not None or subject.decoder is not None:
        # Sizes are compiled as they come: meanwhile eager runs, and a decoder has sizes of its own.
        pass
    elif read.face.examples is not None:
        args, named = read.face.examples
        try:
            engine.warm(compiled.sizes(*args, **named))
        except UnsupportedError as error:
            raise UnsupportedError(of_live(str(error))) from None
    elif not compiled.symbols:
        engine.warm({})
    for sizes in warm:
        compiled.warm(sizes)
    if log.isEnabledFor(logging.DEBUG) and compiled.bindings():
        log.debug("%s\n%s", compiled, compiled.explain())
    return compiled


@dataclass(frozen=True)
class _Subject:
    """What the user gave."""

    name: str = "program"
    #: A program that is exported already; else there is a module.
    program: ExportedProgram | None = None
    #: What is traced, and how it is called.
    module: torch.nn.Module | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    signature: inspect.Signature | None = None
    dynamic: export.Dynamic = None
    #: The module whose weights and state dict the compiled program has.
    shared: torch.nn.Module | None = None
    decoder: Decoder | None = None
    #: Positions of the flat arguments that are numbers and may become inputs.
    numbers: frozenset[int] = frozenset()

    @property
    def examples(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The example inputs, where they may not be those of the program."""
        known = self.program is None and self.decoder is None
        return (self.args, self.kwargs) if known else None

    @property
    def original(self) -> Callable[[], Callable[..., Any]] | None:
        module = self.module
        return None if module is None else lambda: module

    def recorded(self, device: str | torch.device | None) -> _Traced | None:
        """Its calls, recorded in one run; None where it has to go through torch.export."""
        module, args, kwargs = self.module, self.args, self.kwargs
        if module is None or self.decoder is not None or self.dynamic or self.numbers:
            return None
        if not export.is_on(module, (args, kwargs), device):
            return None
        about: dict[str, Any] = {"name": self.name, "signature": self.signature}
        made = lower_module.record(module, args, kwargs, original=self.original, **about)
        if made is None:
            return None
        read, plainly = made
        return _Traced(read, plainly, lambda: module, eager=module)

    def exported(self) -> tuple[ExportedProgram, set[int]]:
        """Its program by torch.export, and which of its numbers are inputs."""
        if self.program is not None:
            return self.program, set()
        assert self.module is not None
        if self.decoder is not None:
            return export.export(self.module, self.args, self.kwargs, self.dynamic), set()
        return _with_numbers(self.module, self.args, self.kwargs, self.dynamic, set(self.numbers))


def _subject(
    given: Any,
    example_inputs: Any,
    kwargs: Mapping[str, Any] | None,
    dynamic: export.Dynamic,
    max_length: int | None,
    batch_size: int,
) -> _Subject:
    """Checks what the user gave."""
    if isinstance(given, Compiled):
        given = given.face.original() if given.face.original is not None else given
    if max_length is not None:
        if example_inputs is not None or kwargs or dynamic is not None:
            raise UsageError(
                "kiln.compile was given max_length and example inputs: leave out example_inputs "
                "and dynamic to compile a language model for generate, else max_length"
            )
        from kiln.api import decoding

        step = decoding.step(given, batch_size, max_length)
        decoder = decoding.Decoder(given, batch_size, max_length)
        example_inputs, dynamic = decoding.examples(step)
        args, named = arguments.of_examples(example_inputs)
        signature = inspect.signature(step.forward)
        name = type(given).__name__
        return _Subject(name, None, step, args, named, signature, dynamic, given, decoder)
    if isinstance(given, ExportedProgram):
        if example_inputs is not None or kwargs or dynamic is not None:
            raise UsageError(
                "kiln.compile was given an exported program and example inputs or `dynamic`: a "
                "program has its own, so leave them out, or pass the module"
            )
        return _Subject(program=given)
    module = callables.module_of(given)
    name = callables.name_of(module)
    if example_inputs is None and kwargs is None:
        raise UsageError(
            f"kiln.compile was given {callables.a(given)} without example inputs: pass a tuple of "
            "its arguments, or a dict of them by name"
        )
    args, named = arguments.of_examples(example_inputs, kwargs)
    signature = inspect.signature(module.forward)
    arguments.check(signature, name, args, named)
    numbers = scalars.asked_for(dynamic, signature, args, named)
    export.check((args, named))
    hooked = callables.hooked(module)
    if hooked:
        warnings.warn(
            f"kiln: hooks of {', '.join(hooked[:4])} are traced into the program, so that what "
            "they do beyond tensors does not happen at calls: hooks on the compiled program do",
            stacklevel=3,
        )
    return _Subject(
        name, None, module, args, named, signature, dynamic, module, None, frozenset(numbers)
    )


def _with_numbers(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic: export.Dynamic,
    numbers: set[int],
) -> tuple[ExportedProgram, set[int]]:
    """The exported module, and which of these numbers are its inputs. Without names, those by which
    it branches, or that are sizes, keep their value."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    known = (t for t in (*leaves, *module.parameters()) if isinstance(t, torch.Tensor))
    device = next((t.device for t in known), None)
    sizes = scalars.without_numbers(dynamic)
    floats = {i for i in numbers if type(leaves[i]) is float}
    tried = [numbers, floats, numbers - floats] if dynamic is True else [numbers]
    for chosen in tried:
        tensors = [
            torch.tensor(v, dtype=scalars.DTYPES[type(v)], device=device) if i in chosen else v
            for i, v in enumerate(leaves)
        ]
        given, named = pytree.tree_unflatten(tensors, spec)
        try:
            with scalars.read_from_tensors(module, chosen):
                exported = _exported(module, given, named, sizes)
            if not chosen:
                return exported, chosen
            exported = export.functional(exported)
            if dynamic is not True or not scalars.are_read(
                lower_module.with_tensors(exported).graph
            ):
                return exported, chosen
            log.info("numbers keep their values: sizes depend on them")
        except UnsupportedError as error:
            if dynamic is not True or not numbers:
                raise
            log.info("numbers keep their values: %s", error)
    return _exported(module, args, kwargs, sizes), set()


def _exported(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], sizes: Any
) -> ExportedProgram:
    """The exported module. Tensors that it keeps in attributes from call to call become buffers,
    which are state."""
    with side_effects.watched(module) as assigned, warnings.catch_warnings():
        # Torch says that it drops them.
        warnings.filterwarnings("ignore", "The tensor attribute", UserWarning)
        exported = export.export(module, args, kwargs, sizes)
    if not assigned:
        return exported
    state = [a for a in assigned if a.is_state()]
    others = [a for a in assigned if not a.is_state()]
    for a in state:
        del a.module.__dict__[a.name]
        a.module.register_buffer(a.name, a.before, persistent=False)
    if state:
        with side_effects.watched(module):
            exported = export.export(module, args, kwargs, sizes)
    read = [a for a in others if a.was_there and _is_read(module, a, args, kwargs, sizes)]
    for a in read:
        shape = list(a.shape)
        raise UnsupportedError(
            f"the module keeps a tensor in `{a.path}`, which is {_shown(a.before)} before the "
            f"first call: make it a tensor of shape {shape} before it is compiled, or use "
            'torch.compile(model, backend="kiln")'
        )
    if others:
        names = ", ".join(f"`{a.path}`" for a in others)
        warnings.warn(
            f"kiln: the module assigns {names}, which calls of the compiled program do not: return "
            "these tensors, or make them buffers of the same shape",
            stacklevel=5,
        )
    return exported


def _is_read(
    module: torch.nn.Module, a: side_effects.Assigned, args: Any, kwargs: Any, sizes: Any
) -> bool:
    """Whether a module reads a tensor that an earlier call left in an attribute."""
    if -1 in a.shape:
        return True
    given = next(
        (t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)), None
    )
    device = given.device if given is not None else None
    del a.module.__dict__[a.name]
    left = torch.zeros(a.shape, dtype=a.dtype, device=device)
    a.module.register_buffer(a.name, left, persistent=False)
    try:
        with side_effects.watched(module):
            second = export.functional(export.export(module, args, kwargs, sizes))
        names = {
            spec.arg.name for spec in second.graph_signature.input_specs if spec.target == a.path
        }
        kept = [n for n in second.graph.find_nodes(op="placeholder") if n.name in names]
        # What is written over is no operand.
        over = torch.ops.aten.copy.default
        return any(
            user.target is not over or user.args[0] is not node
            for node in kept
            for user in node.users
            if user.op != "output"
        )
    except UnsupportedError:
        return True
    finally:
        delattr(a.module, a.name)
        a.module.__dict__[a.name] = a.before


def _shown(value: Any) -> str:
    return (
        f"a tensor of shape {list(value.shape)}"
        if isinstance(value, torch.Tensor)
        else f"{value!r}"
    )


def _read(
    exported: ExportedProgram, given: Mapping[str, Any], **about: Any
) -> tuple[LoweredModule | Pieces, ExportedProgram]:
    """The program in one piece; in several ones if Kiln refuses a part of it. With it comes what it
    was read from: its operators may have become those of core ATen."""
    splits = given.get("fallback") != "error"
    program = lower_module.with_tensors(exported)
    read, problem = None, None
    try:
        read = lower_module.read(program, **about)
        if not _native.refusals(read.program.text):
            return read, program
    except UnsupportedError as error:
        problem = error
    again = export.functional(exported, forced=True)
    if again is not exported:
        return _read(again, given, **about)
    if not splits:
        if read is None:
            assert problem is not None
            raise problem
        return read, program
    from kiln.lowering.split_program import Pieces

    try:
        return Pieces.of(program, given, **about), program
    except UnsupportedError as error:
        raise problem or error from None


class _Clock:
    """Seconds of stages that follow each other."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Ends a stage."""
        now = time.perf_counter()
        self.laps[stage], self._last = now - self._last, now
