"""Modes of torch during recording: `OperatorMode` hands each operator to the recorder, and
`FunctionGuard` refuses functions that reach tensors past operators.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kiln.tracing.shadow import NotTraced

#: What is asked of a tensor or its memory beyond operators.
_OUTSIDE = frozenset(
    {
        torch.Tensor.numpy,
        torch.Tensor.tolist,
        torch.Tensor.data_ptr,
        torch.Tensor.untyped_storage,
        torch.Tensor.storage,
        torch.Tensor.__array__,
        torch.Tensor.__dlpack__,
        torch.Tensor.__deepcopy__,
        torch.Tensor.__reduce_ex__,
        torch.Tensor.apply_,
        torch.Tensor.map_,
        torch.Tensor.share_memory_,
        torch.Tensor.backward,
        torch.Tensor.requires_grad_,
        torch.Tensor.register_hook,
        torch.Tensor.data.__set__,  # type: ignore[attr-defined]
        torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
        torch.autograd.grad,
        torch.autograd.backward,
    }
)


class Recording(Protocol):
    """What the modes know of a recorder."""

    #: Why the run is not recorded after all.
    refused: str

    def call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], mode: Any) -> Any:
        """Records a call of an operator, and gives its result."""


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands every operator that is called to the recorder."""

    def __init__(self, recorder: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else dynamo is imported, which takes seconds.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self.recorder.call(func, args, kwargs or {}, self)
        except NotTraced as error:
            # The module may catch what it takes for an error of its own.
            self.recorder.refused = self.recorder.refused or str(error)
            raise


class FunctionGuard(TorchFunctionMode):
    """Refuses functions that reach the data of tensors, and torch.func transforms except vmap."""

    def __init__(self, recorder: Recording) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _OUTSIDE or _is_transformed():
            name = getattr(func, "__name__", func)
            self.recorder.refused = self.recorder.refused or f"{name} is not recorded"
            raise NotTraced(self.recorder.refused)
        return func(*args, **(kwargs or {}))


def _is_transformed() -> bool:
    functorch = torch._C._functorch
    if functorch.maybe_current_level() is None:
        return False
    top = functorch.peek_interpreter_stack()
    return top is not None and top.key() != functorch.TransformType.Vmap


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Context manager that switches the garbage collector off: a pass over the objects of torch and
    a model takes longer than a trace, and a trace leaves no cycles."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
