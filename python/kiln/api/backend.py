"""The backend of `torch.compile`: the entry point `kiln` of the group `torch_dynamo_backends`.

Takes a graph of dynamo and gives a callable. AOT autograd makes functional ATen of the graph, with
composite operators whole; `kiln.lowering` writes it as a program, and a native engine runs it.
What Kiln refuses, and what needs gradients, runs eagerly in place; `kiln.explain` says why.

Parameters and buffers that the graph does not write to become parameters of the engine. Dynamo's
guards do not look at which tensors they are (two layers of one class share a graph), nor where
their memory is, so each call compares both, and each set of parameters has an engine of its own.
An engine holds the storage of its parameters; when a parameter itself goes, its engines go. What
was written to a parameter in place the engine tells (`Engine.changed`).

Dynamo has checked the inputs of a call against those of tracing. So where an engine refuses one,
that is about the program: the piece runs eagerly, and `kiln.explain` says why. Errors of the data,
as of an index out of range, are the caller's.

AOT's runtime wrapper is kept: without it a call is about 3 microseconds faster, but it rebuilds
outputs that alias inputs, repeats mutations of sizes and strides, and sets the gradient mode.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import TorchDynamoException

from kiln import options as known_options
from kiln import pieces
from kiln import versions as torch_versions
from kiln._native import KilnError, UnsupportedError
from kiln.lowering import scalars, without_aot
from kiln.lowering.lower_graph import Lowering
from kiln.lowering.runner import Versions
from kiln.pieces import Boxed, boxed
from kiln.tracing import aot, dynamo_hooks, flex_attention, sources, transforms, triton_launches

dynamo_hooks.install()

#: The models of which was said that they need gradients.
_WARNED: weakref.WeakSet[Any] = weakref.WeakSet()


def kiln(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Compiles a graph of dynamo; `torch.compile(model, backend="kiln")` calls it.

    `mode`: every mode of torch.compile is taken, and no other; Kiln makes no difference between
    them. `options`: see `kiln.options`.

    >>> import torch
    >>> relu = torch.compile(torch.nn.ReLU(), backend="kiln")
    >>> relu(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0., 0., 1.])
    """
    try:
        known_options.check_mode(mode)
        return _compile(gm, example_inputs, options)
    except KilnError as error:
        # Dynamo wraps what a backend raises in an exception of its own. Raised by the first call,
        # which comes right after, it is the user's to catch by its class.
        return _raising(error)


def _raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def _compile(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None
) -> Callable[..., Any]:
    settings = known_options.check(options, backend=True)
    gm = triton_launches.replaced(gm)
    piece = _piece(gm)
    # A piece lives as long as what runs it.
    gm.meta["kiln_piece"] = piece
    if _needs_gradients(gm, example_inputs):
        pieces.register(piece)
        return _counted_by_model(_train(gm, settings, piece), piece, example_inputs)
    names, expanded = _names(gm), flex_attention.expanded(gm)
    subclass_versions = Versions(example_inputs)
    # AOT's wrapper turns them off around a call.
    gradients = torch.is_grad_enabled()

    if expanded is gm and not subclass_versions.positions:
        recorded = without_aot.compiled(gm, example_inputs, names, settings, piece)
        if recorded is not None:
            pieces.register(piece)
            return _counted_by_model(recorded, piece, example_inputs)

    def inference(lowered: fx.GraphModule, _: Sequence[Any]) -> Boxed:
        numbers = scalars.as_tensors(lowered)
        numbers.module.meta["kiln_piece"] = piece
        run = Lowering(numbers.module, names, settings, gradients, subclass_versions).run(piece)
        return scalars.with_numbers_put(run, numbers)

    def eagerly(lowered: fx.GraphModule, _: Sequence[Any]) -> Boxed:
        return boxed(_train(lowered, settings, piece))

    try:
        with torch_versions.numbers_left():
            run = aot.traced(expanded, example_inputs, inference, eagerly)
    except (KilnError, TorchDynamoException):
        # The latter is how AOT asks dynamo for another trace.
        raise
    except Exception as error:
        run = _untraced(gm, error, settings, piece)
    # Not before: AOT may give up a trace and ask dynamo for another one.
    pieces.register(piece)
    run = _counted_by_model(run, piece, example_inputs)
    return subclass_versions.tracking(run) if known_options.is_checked(settings) else run


def _untraced(
    gm: fx.GraphModule, error: Exception, settings: Mapping[str, Any], piece: pieces.Piece
) -> Callable[..., Any]:
    """Runs by PyTorch a graph that AOT autograd cannot trace, such as one with an operator of a
    library that returns an alias. Where the graph itself fails, running it raises its own error."""
    lines = str(error).strip().splitlines()
    why = f"torch cannot trace it: {lines[0] if lines else type(error).__name__}"
    if settings.get("fallback") == "error":
        message = f"{why}; leave out fallback='error' to let PyTorch run it"
        raise UnsupportedError(message) from error
    piece.refuse(why)
    return pieces.eagerly(piece, transforms.eager(gm))


# What dynamo's graph says


def _piece(gm: fx.GraphModule) -> pieces.Piece:
    lines = (sources.line(n.meta.get("stack_trace")) for n in gm.graph.nodes)
    piece = pieces.Piece(next(filter(None, lines), ""))
    break_info = getattr(gm, "compile_subgraph_reason", None)
    if break_info is not None and break_info.graph_break:
        piece.break_reason = break_info.reason
        if break_info.user_stack:
            frames = "\n".join(
                f'File "{f.filename}", line {f.lineno}' for f in break_info.user_stack
            )
            piece.break_source = sources.place(frames).partition("\n")[0]
    return piece


def _names(gm: fx.GraphModule) -> list[str]:
    """The user's name of each placeholder, empty where there is none."""
    names = []
    for node in gm.graph.find_nodes(op="placeholder"):
        source = getattr(node.meta.get("grapharg"), "source", None)
        tensor = isinstance(node.meta.get("example_value"), torch.Tensor)
        # A property in newer releases of torch.
        name = getattr(source, "name", "") if tensor else ""
        names.append(sources.path(name() if callable(name) else name))
    return names


def _needs_gradients(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether autograd must see the graph: an output needs gradients, or an input that was computed
    with gradients comes in, which the graph may write to."""
    if not torch.is_grad_enabled():
        return False
    (output,) = gm.graph.find_nodes(op="output")
    tensors = [n.meta.get("example_value") for n in output.all_input_nodes]
    if any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors):
        return True
    inputs = (t for t in example_inputs if isinstance(t, torch.Tensor))
    return any(t.requires_grad and not t.is_leaf for t in inputs)


def _train(
    gm: fx.GraphModule, settings: Mapping[str, Any], piece: pieces.Piece
) -> Callable[..., Any]:
    """Runs by PyTorch a graph that needs gradients. Warns once for each model."""
    reason = "gradients are on; use torch.no_grad()"
    piece.state, piece.reason = "eager", reason
    if settings.get("training") == "error":
        where = f" at {piece.source}" if piece.source else ""
        raise UnsupportedError(f"a graph that needs gradients{where}: run it under torch.no_grad()")
    run = transforms.eager(gm)

    def run_and_warn(*args: Any) -> Any:
        if piece.runs.eager == 0:
            _warn(piece)
        piece.runs.ran_eagerly(reason)
        return run(*args)

    return run_and_warn


def _warn(piece: pieces.Piece) -> None:
    """Warns that a model runs eagerly, once for each model."""
    model = torch_versions.compiled_model()
    if model is not None:
        if model in _WARNED:
            return
        _WARNED.add(model)
    text = "kiln: gradients are on: the model runs eagerly; use torch.no_grad()"
    file, _, number = piece.source.rpartition(":")
    # Python shows a text once a line, and two models may be of one class: hence a registry of its
    # own, which is empty.
    place = (file, int(number)) if number.isdigit() else ("<torch.compile>", 1)
    warnings.warn_explicit(text, UserWarning, *place, registry={})


def _counted_by_model(
    run: Callable[..., Any], piece: pieces.Piece, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """Wraps what runs a piece so that its calls are counted by model. The first parameter tells
    models of one class apart."""
    parameters = (i for i, t in enumerate(example_inputs) if isinstance(t, torch.nn.Parameter))
    position = next(parameters, None)
    piece.called_with(None if position is None else example_inputs[position])
    if position is None:
        return run

    def counted(*args: Any) -> Any:
        piece.called_with(args[position])
        return run(*args)

    return counted
