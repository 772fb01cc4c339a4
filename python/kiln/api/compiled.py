"""Calls of a compiled program, which is a module of torch (`compiled_module`) and can be asked what
it does (`inspection`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.utils import _pytree as pytree

from kiln._native import Engine, InputError, ShapeError, UnsupportedError, UsageError
from kiln.api import arguments
from kiln.api.compiled_module import CompiledModule, call_with_hooks, is_traced, moved
from kiln.api.inspection import Inspection
from kiln.lowering.call_spec import CallSpec, has_flat_arguments
from kiln.versions import any_autocast

log = logging.getLogger("kiln")

if TYPE_CHECKING:
    from kiln.api.decoding import Decoder
    from kiln.lowering.split_program import SplitProgram

#: Compiles again for the arguments of a call.
CompileSmallSizes = Callable[[tuple[Any, ...], dict[str, Any]], "Compiled"]

#: Compiles again: for example inputs `(args, kwargs)`, on a device.
Recompile = Callable[[Any, "str | None"], "Compiled"]


def _fast_call(compiled: Compiled) -> Callable[[Compiled, Any, Any], Any]:
    """Makes the function that serves calls without hooks. What a call reads is bound to local
    variables: an attribute of a module takes 0.1 microseconds."""
    run, flat, single = compiled._run, compiled._flat_arguments, compiled._single_output
    changed = compiled.engine.changed if compiled._checks_weights else None
    under_autocast, numbers = bool(compiled._autocast), compiled.call_spec.numbers
    device = compiled.device
    if numbers:
        from kiln.lowering import scalars

    def call(compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if under_autocast or any_autocast():
            compiled._warn_of_autocast()
        if changed is not None and changed():
            compiled.engine.refresh()
        leaves = compiled._flatten(args, kwargs) if kwargs or len(args) != flat else list(args)
        if numbers:
            scalars.numbers_to_tensors(leaves, numbers, compiled.call_spec.inputs, device)
        try:
            outputs = run(leaves)
        except Exception as error:
            return compiled._on_error(args, kwargs, leaves, error)
        if outputs is None:
            with torch.no_grad():
                return compiled._eager_call(*args, **kwargs)  # type: ignore[misc]
        return outputs[0] if single else compiled._unflatten(outputs)

    return call


class Compiled(Inspection, CompiledModule):
    """A compiled program. Call it as the module is called.

    It is a module of torch, with the weights and the state dict of the module that was compiled.
    `.to` and the like move that module, and the program is compiled again at the next call. Hooks
    that are registered here run; those of inner modules run only if they were there when the
    module was compiled, as part of the program. The training mode stays that of compiling.

    >>> import torch, kiln
    >>> relu = kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3),))
    >>> relu
    Compiled(ReLU, cpu)
    """

    engine: Engine | SplitProgram
    call_spec: CallSpec
    device: str
    seconds: dict[str, float]
    _run: Callable[[list[Any]], Any]
    _eager_call: Callable[..., Any] | None
    _decoder: Decoder | None
    _artifact_engine: Callable[[], Engine] | None
    _recompile: Recompile | None
    _compile_small_sizes: CompileSmallSizes | None
    _small_size_programs: dict[tuple[tuple[int, int, int], ...], Compiled | None]
    _dynamic_dimensions: list[tuple[int, int]]
    _checks_weights: bool
    _flat_arguments: int
    _single_output: bool
    _constants: dict[int, Any]
    _orders: dict[int, list[int]]
    _out_spec: pytree.TreeSpec | None

    def __init__(
        self,
        engine: Engine | SplitProgram,
        call_spec: CallSpec,
        *,
        checks_weights: bool = False,
        eager: Callable[..., Any] | None = None,
        decoder: Decoder | None = None,
        module: torch.nn.Module | None = None,
        make_module: Callable[[], torch.nn.Module] | None = None,
        artifact_engine: Callable[[], Engine] | None = None,
        recompile: Recompile | None = None,
    ) -> None:
        super().__init__(module, make_module)
        fields = self.__dict__
        #: Serves calls for whose sizes another thread compiles.
        fields["_eager_call"] = eager
        fields["_decoder"] = decoder
        #: Makes an engine for artifacts, where this one gives results in another order of memory.
        fields["_artifact_engine"] = artifact_engine
        #: Compiles the same module again, for other example inputs and on another device.
        fields["_recompile"] = recompile
        #: Compiles it for calls with sizes of 0 and 1.
        fields["_compile_small_sizes"] = None
        #: Seconds of what came before the engine, by stage.
        fields["seconds"] = {}
        #: Whether each call looks for weights that were changed in place.
        fields["_checks_weights"] = checks_weights
        self._bind_engine(engine, call_spec)

    def _bind_engine(self, engine: Engine | SplitProgram, call_spec: CallSpec) -> None:
        """Makes an engine the one that runs calls."""
        fields = self.__dict__
        fields.update(engine=engine, call_spec=call_spec, device=call_spec.device, _run=engine.run)
        fields.update(_constants=call_spec.constants, _orders=call_spec.orders)
        fields["_out_spec"] = call_spec.out_spec
        #: How many arguments a call without nesting has, else -1.
        fields["_flat_arguments"] = -1
        #: Whether the one output is the result.
        fields["_single_output"] = False
        if call_spec.in_spec is not None and call_spec.out_spec is not None:
            n = call_spec.in_spec.num_leaves
            fields["_flat_arguments"] = n if has_flat_arguments(call_spec.in_spec, n) else -1
            fields["_single_output"] = call_spec.out_spec.is_leaf() and not (
                call_spec.constants or call_spec.orders
            )
        #: Dynamic dimensions, and the programs for calls in which some of them are 0 or 1.
        fields["_dynamic_dimensions"] = [
            (i, d)
            for i, shape in enumerate(call_spec.shapes)
            for d, size in enumerate(shape or ())
            if not isinstance(size, int)
        ]
        fields["_small_size_programs"] = {}
        fields["_serve_fast"] = fields["_serve_call"] = _fast_call(self)

    def __repr__(self) -> str:
        sizes = f", sizes {', '.join(self.symbols)}" if self.symbols else ""
        return f"Compiled({self.call_spec.name}, {self.device}{sizes})"

    def __copy__(self) -> Compiled:
        copy = Compiled.__new__(Compiled)
        copy.__dict__.update(self.__dict__)
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UsageError(
            "a compiled program cannot be pickled or deep-copied, since it is bound to weights and "
            "a device: write it with `.save`, and open it with `kiln.load`"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program. Gives what the module gives, nested as the module nests it. Tensors of
        the result are dense, with their dimensions in the module's order in memory, and share no
        memory with the inputs or with each other."""
        if is_dynamo_compiling() and self.__dict__["_module"] is not None:
            # As a part of what torch.compile traces.
            return self.__dict__["_module"](*args, **kwargs)
        if _global_forward_hooks or _global_forward_pre_hooks:
            return call_with_hooks(self, args, kwargs)
        return self._serve_call(self, args, kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """A call without the hooks of this module. Checks first that the weights are those of the
        program, if they may have been replaced."""
        if self._weights_exposed and not self._rebind_weights():
            if not torch.compiler.is_compiling():
                self._warn_once(
                    f"{self} is called with other weights than it was compiled with, so the module "
                    "runs eagerly: compile it with these weights"
                )
            return self._original(*args, **kwargs)
        if not self._has_hooks():
            self._serve_call = self._serve_fast
        return self._serve_fast(self, args, kwargs)

    def _on_error(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any], error: Exception
    ) -> Any:
        """Handles arguments that the engine refused. Under tracing it calls the module; sizes of 0
        and 1 get a program of their own."""
        if any(map(is_traced, leaves)):
            return self._original(*args, **kwargs)
        if isinstance(error, ShapeError):
            small = self._small_size_program(args, kwargs, leaves)
            if small is not None:
                return small(*args, **kwargs)
        if isinstance(error, InputError):
            arguments.check_kinds(self.call_spec.inputs, self.call_spec.shapes, leaves)
        raise error from None

    def traces_small_sizes(self, compile_small_sizes: CompileSmallSizes) -> None:
        """Sets the function that compiles calls with a dynamic dimension of 0 or 1, which
        `torch.export` specialises."""
        self.__dict__["_compile_small_sizes"] = compile_small_sizes

    def _small_size_program(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]
    ) -> Compiled | None:
        """The program for calls with a dynamic dimension of 0 or 1, compiled at the first such
        call. None if there is no such dimension, or `torch.export` refuses it."""
        key = tuple(
            (i, d, leaves[i].shape[d])
            for i, d in self._dynamic_dimensions
            if i < len(leaves)
            and isinstance(leaves[i], torch.Tensor)
            and d < leaves[i].dim()
            and leaves[i].shape[d] < 2
        )
        if not key or self._compile_small_sizes is None:
            return None
        if key not in self._small_size_programs:
            self._small_size_programs[key] = None
            try:
                self._small_size_programs[key] = self._compile_small_sizes(args, kwargs)
            except (UnsupportedError, UsageError, InputError) as error:
                log.info("%s was not traced for a dimension of 0 or 1: %s", self, error)
        return self._small_size_programs[key]

    def _original(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module that was compiled."""
        if self.call_spec.original is None:
            raise UsageError(
                f"{self} came from a file, and cannot be traced as part of another program: trace "
                "the module that the file was made from"
            )
        return self.call_spec.original()(*args, **kwargs)

    def _rebind_weights(self) -> bool:
        """Whether the program has the current weights of the module. Compiles it again if they were
        replaced for good."""
        fields = self.__dict__
        fields["_weights_exposed"] = False
        if self._has_bound_weights() and not self._weights_replaced:
            return True
        if self._recompile is not None and (self._weights_replaced or self._has_moved()):
            fresh = self._recompile(self.call_spec.examples, None)
            self._bind_engine(fresh.engine, fresh.call_spec)
            kept = (
                "_bound_weights",
                "_autocast",
                "_checks_weights",
                "_eager_call",
                "_decoder",
                "_artifact_engine",
                "seconds",
            )
            fields.update({name: fresh.__dict__[name] for name in kept})
            fields["_weights_replaced"] = False
            return True
        fields["_weights_exposed"] = True
        return False

    def _can_move(self) -> bool:
        return self._recompile is not None

    def _move_examples(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.call_spec = replace(self.call_spec, examples=moved(self.call_spec.examples, fn))

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
        if self._checks_weights and self.engine.changed():
            self.engine.refresh()
        outputs = self.engine.steps(count, self._flatten(args, kwargs))
        if outputs is not None:
            return self._unflatten(outputs)
        result = None
        with torch.no_grad():
            for _ in range(count):
                result = self._eager_call(*args, **kwargs)  # type: ignore[misc]
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
                f"{self.call_spec.name} was not compiled to generate: compile the language model "
                "with kiln.compile(model, max_length=...)"
            )
        return self._decoder.generate(self, ids, max_new_tokens, eos)

    def _unflatten(self, outputs: list[Any]) -> Any:
        for i, order in self._orders.items():
            outputs[i] = outputs[i].permute(order)
        if self._out_spec is None:
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        for i, value in self._constants.items():
            outputs[i] = value
        return pytree.tree_unflatten(outputs, self._out_spec)
