"""`kiln.compile`: a module or an exported program as a callable, and what can be asked of it."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from kiln import _native, export, pairs, versions
from kiln import options as known_options
from kiln._native import Engine, InputError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from kiln.bench import Table
    from kiln.chain import Pieces
    from kiln.decoding import Decoder
    from kiln.report import Report

#: Sizes to compile ahead: sizes by symbol, sizes in the symbols' order, or example inputs.
Sizes = Mapping[str, int] | Sequence[int] | Sequence[Any]


def compile(
    module_or_program: torch.nn.Module | ExportedProgram,
    example_inputs: Any = None,
    *,
    dynamic: export.Dynamic = None,
    device: str | torch.device | None = None,
    options: Mapping[str, Any] | None = None,
    warm: Iterable[Sizes] | None = None,
    max_length: int | None = None,
    batch_size: int = 1,
) -> Compiled:
    """Compiles a module, or a program of `torch.export`.

    `example_inputs`: a tuple of the arguments, or a dict of them by name. `dynamic`: None or False
    for static shapes, True for dynamic ones wherever the module allows them, or as `torch.export`
    takes `dynamic_shapes`. `device`: moves the program there first. `options`: see `kiln.options`.
    It is compiled now for the sizes of the example inputs, machine code of the device included, so
    that what cannot be compiled is told here; and for those of `warm`. Other sizes are compiled at
    their first call.

    A part that Kiln refuses runs eagerly in place, as in torch.compile, and `explain` names it;
    with `options={"fallback": "error"}` it is an error. Such a program cannot be saved.

    `max_length`: compiles a causal language model of transformers for `Compiled.generate`, with
    caches of so many tokens, for `batch_size` texts at once. There are no example inputs then.

    Gradients are off. Buffers that the module writes to are written in place: the compiled program
    and the module share them, as they share all weights. Weights that are written to in place are
    taken up at the next call (`options={"weights": "frozen"}` leaves out to look; then
    `Compiled.refresh` does it); after `p.data = other` and the like compile again.

    >>> import torch, kiln
    >>> double = kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3),))
    >>> double(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0., 0., 1.])
    """
    given = known_options.check(options, backend=False)
    clock = _Clock()
    decoder = None
    module: torch.nn.Module | None
    if max_length is not None:
        if example_inputs is not None or dynamic is not None:
            raise UsageError(
                "kiln.compile was given max_length and example inputs: leave out example_inputs "
                "and dynamic to compile a language model for generate, else max_length"
            )
        from kiln import decoding

        module = decoding.step(module_or_program, batch_size, max_length)
        decoder = decoding.Decoder(module_or_program, batch_size, max_length)
        example_inputs, dynamic = decoding.examples(module)
    elif isinstance(module_or_program, ExportedProgram):
        module = None
    elif isinstance(module_or_program, torch.nn.Module):
        module = module_or_program
        if example_inputs is None:
            raise UsageError(
                "kiln.compile was given a module without example inputs: pass a tuple of its "
                "arguments, or a dict of them by name"
            )
        export.check(example_inputs)
    else:
        raise UsageError(
            f"kiln.compile was given {_a(module_or_program)}: pass a torch.nn.Module or the result "
            'of torch.export.export; for functions use torch.compile(f, backend="kiln")'
        )
    about = _About(module, decoder, given, list(warm or ()))
    if module is None:
        program: Any = module_or_program
        return _exported(program, about, device, clock)
    about.name = type(module if decoder is None else module_or_program).__name__
    about.signature = inspect.signature(module.forward)
    args, kwargs = export.arguments(example_inputs)
    if not dynamic and decoder is None and export.is_on(module, (args, kwargs), device):
        read = export.record(
            module,
            args,
            kwargs,
            name=about.name,
            signature=about.signature,
            original=lambda: module,
        )
        clock.lap("export")
        if read is not None:
            clock.lap("functional")
            try:
                return _engine(read, about, module, clock)
            except UnsupportedError as error:
                export.log.info("%s goes through torch.export: %s", about.name, error)
                clock = _Clock()
    exported = export.export(module, args, kwargs, dynamic)
    return _exported(exported, about, device, clock)


@dataclass
class _About:
    """What is compiled, and how."""

    module: torch.nn.Module | None
    decoder: Decoder | None
    given: Mapping[str, Any]
    warm: list[Sizes]
    name: str = "program"
    signature: inspect.Signature | None = None


def _exported(
    exported: ExportedProgram, about: _About, device: str | torch.device | None, clock: _Clock
) -> Compiled:
    """Compiles a program of torch.export."""
    clock.lap("export")
    module = about.module
    exported = export.functional(exported)
    if device is not None:
        exported = export.moved(exported, str(device))
    clock.lap("functional")
    original = None if module is None else lambda: module
    eager = None
    if about.given.get("while_compiling") == "eager":
        eager = module if module is not None and device is None else exported.module()
    read = _read(
        exported, about.given, name=about.name, signature=about.signature, original=original
    )
    if eager is not None and read.face.state and eager is not module:
        raise UsageError(
            "while_compiling='eager' runs the module meanwhile, and this program writes to "
            "buffers: pass the module itself, on the device where it is to run"
        )
    return _engine(read, about, eager, clock)


def _engine(
    read: export.Exported | Pieces, about: _About, eager: Callable[..., Any] | None, clock: _Clock
) -> Compiled:
    """Compiles a program for the sizes that are asked for."""
    if about.given.get("while_compiling") != "eager":
        eager = None
    engine: Engine | Pieces
    if isinstance(read, export.Exported):
        for_engine = known_options.for_engine(about.given, read.face.device)
        plain = Engine(read.program.text, [pairs.parts(p) for p in read.params], for_engine)
        engine = pairs.wrapped(plain, read.program.takes_complex, read.program.complex_outputs)
        checked = bool(read.params) and known_options.is_checked(about.given)
    else:
        engine, checked = read, False
    clock.lap("program")
    compiled = Compiled(engine, read.face, checked=checked, eager=eager, decoder=about.decoder)
    compiled.seconds = clock.laps
    if eager is not None or about.decoder is not None:
        # Sizes are compiled as they come: meanwhile eager runs, and a decoder has sizes of its own.
        pass
    elif read.face.examples is not None:
        args, kwargs = read.face.examples
        engine.warm(compiled.sizes(*args, **kwargs))
    elif not compiled.symbols:
        engine.warm({})
    for sizes in about.warm:
        compiled.warm(sizes)
    return compiled


def _read(
    exported: ExportedProgram, given: Mapping[str, Any], **about: Any
) -> export.Exported | Pieces:
    """The program in one piece; in several ones if Kiln refuses a part of it."""
    splits = given.get("fallback") != "error"
    try:
        read = export.read(exported, **about)
        if not _native.refusals(read.program.text):
            return read
        problem = None
    except UnsupportedError as error:
        problem = error
    again = export.functional(exported, forced=True)
    if again is not exported:
        return _read(again, given, **about)
    if not splits:
        if problem is not None:
            raise problem
        return read
    from kiln.chain import Pieces

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


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


class Compiled:
    """A compiled program. Call it as the module is called.

    >>> import torch, kiln
    >>> relu = kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3),))
    >>> relu
    Compiled(ReLU, cpu)
    """

    def __init__(
        self,
        engine: Engine | Pieces,
        face: export.Face,
        *,
        checked: bool = False,
        eager: Callable[..., Any] | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        self.engine = engine
        #: Serves calls for whose sizes another thread compiles.
        self._eager = eager
        self._decoder = decoder
        #: Whether each call looks for weights that were changed in place.
        self._checked = checked
        self.face = face
        self.device = face.device
        self._run = engine.run
        #: Seconds of what came before the engine, by stage.
        self.seconds: dict[str, float] = {}
        self._constants = face.constants
        self._in_spec, self._out_spec = face.in_spec, face.out_spec
        #: How many arguments a call without nesting has, else -1.
        self._flat = -1
        #: Whether the one output is the result.
        self._single = False
        if self._in_spec is not None and self._out_spec is not None:
            n = self._in_spec.num_leaves
            self._flat = n if export.caller(self._in_spec, n) else -1
            self._single = self._out_spec.is_leaf() and not self._constants

    def __repr__(self) -> str:
        sizes = f", sizes {', '.join(self.symbols)}" if self.symbols else ""
        return f"Compiled({self.face.name}, {self.device}{sizes})"

    def __copy__(self) -> Compiled:
        return Compiled(self.engine, self.face, checked=self._checked)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UsageError(
            "a compiled program cannot be pickled or deep-copied, since it is bound to weights and "
            "a device: write it with `.save`, and open it with `kiln.load`"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program. Gives what the module gives, nested as the module nests it. Tensors of
        the result are dense, and share no memory with the inputs or with each other."""
        if self._checked and self.engine.changed():
            self.engine.refresh()
        if not kwargs and len(args) == self._flat:
            outputs = self._run(list(args))
        else:
            outputs = self._run(self._flatten(args, kwargs))
        if outputs is None:
            with torch.no_grad():
                return self._eager(*args, **kwargs)  # type: ignore[misc]
        return outputs[0] if self._single else self._unflatten(outputs)

    def steps(self, count: int, *args: Any, **kwargs: Any) -> Any:
        """Calls the program `count` times with these inputs, and gives the result of the last call.

        For programs with state: each call reads what the one before has left. On a GPU all of them
        are enqueued at once, and nothing waits.

        >>> import torch, kiln
        >>> class Counter(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("total", torch.zeros(2))
        ...     def forward(self, x):
        ...         self.total += x
        ...         return self.total * 1
        >>> kiln.compile(Counter().eval(), (torch.ones(2),)).steps(5, torch.ones(2))
        tensor([5., 5.])
        """
        if self._checked and self.engine.changed():
            self.engine.refresh()
        outputs = self.engine.steps(count, self._flatten(args, kwargs))
        if outputs is not None:
            return self._unflatten(outputs)
        result = None
        with torch.no_grad():
            for _ in range(count):
                result = self._eager(*args, **kwargs)  # type: ignore[misc]
        return result

    def generate(
        self,
        ids: torch.Tensor,
        max_new_tokens: int,
        eos: int | Iterable[int] | None = None,
    ) -> torch.Tensor:
        """The tokens of texts and those that follow, each the likeliest, as of
        `model.generate(ids, max_new_tokens=..., do_sample=False)`.

        For a model that was compiled with `max_length`. `ids`: the tokens of the texts, without
        padding, a row each. `eos`: tokens that end a text; the model's own if left out, `()` for
        none. Where texts end before others, padding follows.

        The prompt goes through the model in pieces of 512, 64, 8 and 1 tokens, and each size is
        compiled when it is first needed (`warm`). Tokens are chosen on the device and stay there:
        the host looks for the end every few tokens.

        >>> import torch, kiln, transformers
        >>> config = transformers.LlamaConfig(
        ...     vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        ...     num_attention_heads=2, max_position_embeddings=64)
        >>> model = transformers.LlamaForCausalLM(config).eval()
        >>> compiled = kiln.compile(model, max_length=32)
        >>> compiled.generate(torch.tensor([[5, 17, 9]]), max_new_tokens=10, eos=()).shape
        torch.Size([1, 13])
        """
        if self._decoder is None:
            raise UsageError(
                f"{self.face.name} was not compiled to generate: compile the language model with "
                "kiln.compile(model, max_length=...)"
            )
        return self._decoder.generate(self, ids, max_new_tokens, eos)

    def _unflatten(self, outputs: list[Any]) -> Any:
        if self._out_spec is None:
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        for i, value in self._constants.items():
            outputs[i] = value
        return pytree.tree_unflatten(outputs, self._out_spec)

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The leaves of a call, in the order of the program's inputs."""
        if self._in_spec is None:
            if kwargs:
                names = ", ".join(kwargs)
                raise InputError(f"the program was called with keywords {names}: give positions")
            return list(args)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec == self._in_spec:
            return leaves
        args, kwargs = self._as_exported(self._in_spec, args, kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            raise InputError(
                f"the program was called with {_shape_of(spec)}, and compiled for "
                f"{_shape_of(self._in_spec)}: call it as it was compiled, or compile it again with "
                "such example inputs"
            )
        return leaves

    def _as_exported(
        self, in_spec: pytree.TreeSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same arguments, given by position or by name as the example inputs were."""
        positional, keywords = versions.children(in_spec)
        names = list(keywords.context or ())
        signature = self.face.signature
        if signature is not None:
            try:
                bound = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise InputError(f"the program was called wrongly: {error}") from None
            plain = [
                p.name
                for p in signature.parameters.values()
                if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
            ]
            first = plain[: positional.num_children]
            if set(first) | set(names) >= set(bound) and set(first) <= set(bound):
                args = tuple(bound[name] for name in first)
                kwargs = {name: bound[name] for name in bound if name not in first}
        if set(kwargs) == set(names):
            kwargs = {name: kwargs[name] for name in names}
        return args, kwargs

    # What can be asked

    @property
    def symbols(self) -> list[str]:
        """The names of the symbols that sizes depend on.

        >>> import torch, kiln
        >>> relu = kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3, 4),), dynamic=True)
        >>> len(relu.symbols)
        2
        """
        return list(self.face.symbols)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """The buffers that the program writes to, by name: the module's own tensors, or those of
        the program where it came from a file.

        >>> import torch, kiln
        >>> kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3),)).state
        {}
        """
        # Of a file only the engine knows.
        return self.engine.state() if self.face.state is None else dict(self.face.state)

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
        args, kwargs = export.arguments(sizes)
        return self.sizes(*args, **kwargs)

    def sizes(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """The sizes of the symbols for these inputs.

        >>> import torch, kiln
        >>> relu = kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3, 4),), dynamic=True)
        >>> sorted(relu.sizes(torch.ones(5, 6)).values())
        [5, 6]
        """
        return self.face.sizes_of(self._flatten(args, kwargs))

    def explain(self, sizes: Sizes | None = None) -> Report:
        """What was fused, why, and at what predicted cost.

        >>> import torch, kiln
        >>> report = kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3),)).explain()
        >>> len(report.kernels)
        1
        """
        from kiln.chain import Pieces
        from kiln.report import Report

        if isinstance(self.engine, Pieces):
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
        self.engine.save(os.fspath(path), None if sizes is None else self._sizes(sizes))

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
        from kiln import bench

        if self._decoder is not None:
            raise UsageError(
                f"each call of {self.face.name} goes on where the last one stopped, until its "
                "caches are full: time generate, whose calls begin anew"
            )
        if not args and not kwargs:
            if self.face.examples is None:
                raise UsageError("the program has no example inputs: pass the inputs to bench")
            args, kwargs = self.face.examples
        bench.refuse_processes(self.engine.fallbacks())
        peers = bench.peers(self.face.original, against)
        return bench.measure(
            {"kiln": self, **peers}, args, kwargs, self.device, repetitions, seconds
        )


def _shape_of(spec: pytree.TreeSpec) -> str:
    positional, keywords = versions.children(spec)
    plural = "" if positional.num_children == 1 else "s"
    parts = [f"{positional.num_children} positional argument{plural}"]
    if keywords.context:
        parts.append("keywords " + ", ".join(keywords.context))
    return f"{' and '.join(parts)} ({spec.num_leaves} leaves)"
