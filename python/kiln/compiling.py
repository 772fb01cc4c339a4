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

from kiln import _native, arguments, effects, export, pairs, scalars, target
from kiln import options as known_options
from kiln._native import Engine, UnsupportedError, UsageError
from kiln.chain import Pieces
from kiln.compiled import Compiled, Sizes
from kiln.pieces import log
from kiln.sources import of_live

if TYPE_CHECKING:
    from kiln.decoding import Decoder


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
    source = _source(module_or_program, example_inputs, kwargs, dynamic, max_length, batch_size)
    clock.lap("export")
    exported = export.functional(source.exported)
    if device is not None:
        exported = export.moved(exported, str(device))
    program = export.with_tensors(exported)
    clock.lap("functional")
    module = source.module
    eager = None
    if given.get("while_compiling") == "eager":
        eager = module if module is not None and device is None else exported.module()
    original = None if module is None else lambda: module
    about: dict[str, Any] = {"name": source.name, "signature": source.signature}
    read = _read(program, given, original=original, **about)
    if eager is not None and read.face.state and eager is not module:
        raise UsageError(
            "while_compiling='eager' runs the module meanwhile, and this program writes to "
            "buffers: pass the module itself, on the device where it is to run"
        )
    engine: Engine | Pieces
    plain = None
    if isinstance(read, Pieces):
        engine, checked = read, False
    else:
        for_engine = known_options.for_engine(given, read.face.device)
        made = Engine(read.program.text, [pairs.parts(p) for p in read.params], for_engine)
        engine = pairs.wrapped(made, read.program.takes_complex, read.program.complex_outputs)
        checked = bool(read.params) and known_options.is_checked(given)
        if read.face.orders:
            plain = _plain(program, read, for_engine, about)
    clock.lap("program")

    shared = source.shared or exported

    def again(examples: Any, device: str | None) -> Compiled:
        """The same of the module as it is then."""
        at: dict[str, Any] = {"device": device, "options": options, "warm": warm}
        if max_length is not None:
            return compile(shared, max_length=max_length, batch_size=batch_size, **at)
        args, named = examples
        return compile(shared, args, kwargs=named, dynamic=dynamic, **at)

    examples = source.examples or read.face.examples
    compiled = Compiled(
        engine,
        replace(read.face, numbers=source.numbers, examples=examples),
        checked=checked,
        eager=eager,
        decoder=source.decoder,
        module=source.shared,
        make_module=exported.module,
        plain=plain,
        again=None if module is None else again,
    )
    compiled.seconds = clock.laps
    if eager is not None or source.decoder is not None:
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
    for sizes in warm or ():
        compiled.warm(sizes)
    if log.isEnabledFor(logging.DEBUG) and compiled.bindings():
        log.debug("%s\n%s", compiled, compiled.explain())
    return compiled


@dataclass(frozen=True)
class _Source:
    """What is compiled."""

    exported: ExportedProgram
    name: str = "program"
    #: What was exported, and how it is called; None for a program.
    module: torch.nn.Module | None = None
    signature: inspect.Signature | None = None
    #: The module whose weights and state dict the compiled program has.
    shared: torch.nn.Module | None = None
    decoder: Decoder | None = None
    #: Kinds of the flat arguments that are numbers and inputs, by their positions.
    numbers: dict[int, type] = field(default_factory=dict)
    #: The example inputs, `(args, kwargs)`, where they are not those of the program.
    examples: tuple[tuple[Any, ...], dict[str, Any]] | None = None


def _source(
    given: Any,
    example_inputs: Any,
    kwargs: Mapping[str, Any] | None,
    dynamic: export.Dynamic,
    max_length: int | None,
    batch_size: int,
) -> _Source:
    """Exports what the user gave."""
    if isinstance(given, Compiled):
        given = given.face.original() if given.face.original is not None else given
    if max_length is not None:
        if example_inputs is not None or kwargs or dynamic is not None:
            raise UsageError(
                "kiln.compile was given max_length and example inputs: leave out example_inputs "
                "and dynamic to compile a language model for generate, else max_length"
            )
        from kiln import decoding

        step = decoding.step(given, batch_size, max_length)
        decoder = decoding.Decoder(given, batch_size, max_length)
        example_inputs, dynamic = decoding.examples(step)
        signature = inspect.signature(step.forward)
        exported = export.export(step, *arguments.of_examples(example_inputs), dynamic)
        return _Source(exported, type(given).__name__, step, signature, given, decoder)
    if isinstance(given, ExportedProgram):
        if example_inputs is not None or kwargs or dynamic is not None:
            raise UsageError(
                "kiln.compile was given an exported program and example inputs or `dynamic`: a "
                "program has its own, so leave them out, or pass the module"
            )
        return _Source(given)
    module = target.module_of(given)
    name = target.name_of(module)
    if example_inputs is None and kwargs is None:
        raise UsageError(
            f"kiln.compile was given {target.a(given)} without example inputs: pass a tuple of its "
            "arguments, or a dict of them by name"
        )
    args, named = arguments.of_examples(example_inputs, kwargs)
    signature = inspect.signature(module.forward)
    arguments.check(signature, name, args, named)
    numbers = scalars.asked_for(dynamic, signature, args, named)
    export.check((args, named))
    hooked = target.hooked(module)
    if hooked:
        warnings.warn(
            f"kiln: hooks of {', '.join(hooked[:4])} are traced into the program, so that what "
            "they do beyond tensors does not happen at calls: hooks on the compiled program do",
            stacklevel=3,
        )
    exported, numbers = _with_numbers(module, args, named, dynamic, numbers)
    kinds = {i: type(pytree.tree_leaves((args, named))[i]) for i in sorted(numbers)}
    examples = args, named
    return _Source(exported, name, module, signature, module, None, kinds, examples)


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
            if dynamic is not True or not scalars.are_read(export.with_tensors(exported).graph):
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
    with effects.watched(module) as assigned, warnings.catch_warnings():
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
        with effects.watched(module):
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
    module: torch.nn.Module, a: effects.Assigned, args: Any, kwargs: Any, sizes: Any
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
        with effects.watched(module):
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


def _plain(
    exported: ExportedProgram,
    read: export.Exported,
    for_engine: dict[str, Any],
    about: Mapping[str, Any],
) -> Callable[[], Engine]:
    """Makes an engine whose results have the order of their dimensions in memory, for artifacts."""

    def make() -> Engine:
        plain = export.read(exported, ordered=False, **about)
        return Engine(plain.program.text, [pairs.parts(p) for p in read.params], for_engine)

    return make


def _read(
    exported: ExportedProgram, given: Mapping[str, Any], **about: Any
) -> export.Exported | Pieces:
    """The program in one piece; in several ones if Kiln refuses a part of it."""
    splits = given.get("fallback") != "error"
    try:
        read = export.read(exported, **about)
        if not splits or not _native.refusals(read.program.text):
            return read
        problem = None
    except UnsupportedError as error:
        if not splits:
            raise
        problem = error
    try:
        return Pieces.of(exported, given, **about)
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
