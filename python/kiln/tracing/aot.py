"""Traces a graph of dynamo by AOT autograd, composite operators whole where that is safe.

Takes the graph, and what makes callables of the functional graphs that come of it. What torch
cannot trace whole is traced again, all composite operators decomposed. So is a graph of which an
input or a write was lost; if the decomposed graph reads what the first one does not, the first
one is wrong, and the decomposed one is taken. It never gives a callable of a graph that failed, and
where tracing fails, transforms that the graph has entered are left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException

from kiln import pieces
from kiln._native import KilnError
from kiln.pieces import Boxed
from kiln.tracing import composites, data_flow, sources, transforms

#: What makes a callable of a functional graph.
Compiler = Callable[[fx.GraphModule, Sequence[Any]], Boxed]


def traced(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    inference: Compiler,
    training: Compiler,
) -> Callable[..., Any]:
    """Traces a graph by AOT autograd. Gives what `inference` makes of it if no gradients are
    needed."""
    once = _Trace(gm, inputs, training)
    suspect: _SuspectTraceError | None = None

    def checked(lowered: fx.GraphModule, given: Sequence[Any]) -> Boxed:
        lost = data_flow.lost(gm, lowered)
        if lost:
            raise _SuspectTraceError(lost, data_flow.reads(lowered))
        return inference(lowered, given)

    try:
        return once.run(checked, whole=True)
    except _SuspectTraceError as error:
        suspect = error
    except (KilnError, TorchDynamoException):
        raise
    except Exception as error:
        # An operator that torch cannot trace whole. If that was not it, this fails as well.
        pieces.log.info("composite operators are decomposed: %s", error)
        return once.run(inference, whole=False)

    def compared(lowered: fx.GraphModule, given: Sequence[Any]) -> Boxed:
        if data_flow.reads(lowered) <= suspect.reads:
            raise _SoundTraceError
        pieces.log.warning("composite operators are decomposed: traced whole, %s", suspect)
        return inference(lowered, given)

    try:
        return once.run(compared, whole=False)
    except _SoundTraceError:
        return once.run(inference, whole=True)


class _SuspectTraceError(Exception):
    """A trace has lost an input or a write of the dynamo graph."""

    def __init__(self, lost: Sequence[fx.Node], read: frozenset[str]) -> None:
        where = [sources.line(node.meta.get("stack_trace")) for node in lost]
        places = ", ".join(dict.fromkeys(filter(None, where)))
        names = ", ".join(node.name for node in lost)
        super().__init__(f"nothing reads {names}" + (f" ({places})" if places else ""))
        self.reads = read


class _SoundTraceError(Exception):
    """The decomposed trace reads nothing more than the suspect one, which is therefore right."""


class _Trace:
    """The arguments that all traces of a graph share."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[Any], training: Compiler) -> None:
        self.gm, self.inputs, self.training = gm, inputs, training
        self.differentiates = transforms.differentiates(gm)

    def run(self, inference: Compiler, *, whole: bool) -> Callable[..., Any]:
        """Traces the graph, composite operators `whole` or decomposed."""
        compiler = aot_autograd(
            fw_compiler=self.training,
            bw_compiler=self.training,
            inference_compiler=inference,
            decompositions={},
            keep_inference_input_mutations=True,
        )
        kept = composites.kept(differentiated=self.differentiates)
        with transforms.undone(), kept if whole else contextlib.nullcontext():
            run: Callable[..., Any] = compiler(self.gm, self.inputs)
        return run
