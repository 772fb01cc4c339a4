"""Side effects of `forward` in tracing: checks of data, attributes, and functions that torch cannot
trace.

Checks of data (`if torch.any(x < 0): raise ...`, `assert`) are left out: a compiled program could
only raise after waiting for the device. Tensors that `forward` assigns to attributes of modules are
collected, since torch.export would drop them.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from kiln._native import UnsupportedError


@dataclass(frozen=True)
class Assigned:
    """A tensor that a module assigned to an attribute."""

    module: nn.Module
    #: The path of the attribute, as `encoder.hidden`, and its name in the module.
    path: str
    name: str
    #: Whether there was a value before, and which.
    was_there: bool
    before: Any
    shape: tuple[int, ...]
    dtype: torch.dtype

    def is_state(self) -> bool:
        """Whether a tensor of the same shape and dtype was replaced, as state is."""
        old = self.before
        same = isinstance(old, torch.Tensor) and not isinstance(old, nn.Parameter)
        return same and (tuple(old.shape), old.dtype) == (self.shape, self.dtype)


@contextlib.contextmanager
def watched(module: nn.Module) -> Iterator[list[Assigned]]:
    """Context manager in which calls of a module are traced without checks of data.

    Collects the tensors that they assign to attributes. Attributes have their old values
    afterwards.
    """
    found: list[Assigned] = []
    called = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return called(*args, **kwargs)
        before, buffers = _tensors(module), _buffers(module)
        try:
            with _Functions(), _without_checks():
                result = called(*args, **kwargs)
            return _written_back(module, buffers, result)
        finally:
            found[:] = _assigned(module, before)

    forward.__signature__ = inspect.signature(called)  # type: ignore[attr-defined]
    instance_forward = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield found
    finally:
        if instance_forward is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = instance_forward
        for a in found:
            if a.was_there:
                a.module.__dict__[a.name] = a.before
            else:
                a.module.__dict__.pop(a.name, None)


def _tensors(module: nn.Module) -> dict[tuple[str, str], Any]:
    """The plain attributes of all modules, by path and name."""
    return {
        (path, name): value
        for path, part in module.named_modules()
        for name, value in part.__dict__.items()
        if not name.startswith("_") or isinstance(value, torch.Tensor)
    }


_Buffers = list[tuple[nn.Module, str, str, torch.Tensor]]


def _buffers(module: nn.Module) -> _Buffers:
    """The buffers of all modules: module, name, path and tensor."""
    return [
        (part, name, f"{path}.{name}" if path else name, buffer)
        for path, part in module.named_modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]


def _written_back(module: nn.Module, before: _Buffers, result: Any) -> Any:
    """Copies tensors that were assigned to buffers into these buffers. torch.export sees only
    assignments to buffers of the outermost module. Gives the result without views of the buffers.
    """
    for part, name, path, buffer in before:
        new = part._buffers.get(name)
        if new is buffer or new is None:
            continue
        if (new.shape, new.dtype) != (buffer.shape, buffer.dtype):
            raise UnsupportedError(
                f"the module replaces its buffer `{path}` by a tensor of another shape or dtype: "
                "make it as large as it can become, and write into it"
            )
        memory = buffer.untyped_storage()._cdata

        def unshared(tensor: torch.Tensor, memory: int = memory) -> torch.Tensor:
            return tensor.clone() if tensor.untyped_storage()._cdata == memory else tensor

        result = tree_map_only(torch.Tensor, unshared, result)
        part._buffers[name] = buffer
        buffer.copy_(new)
    return result


def _assigned(module: nn.Module, before: dict[tuple[str, str], Any]) -> list[Assigned]:
    parts = dict(module.named_modules())
    found = []
    for (path, name), value in _tensors(module).items():
        old = before.get((path, name))
        if isinstance(value, torch.Tensor) and value is not old:
            shape = tuple(int(n) if isinstance(n, int) else -1 for n in value.shape)
            full_path = f"{path}.{name}" if path else name
            existed = (path, name) in before
            found.append(Assigned(parts[path], full_path, name, existed, old, shape, value.dtype))
    return found


class _Functions(TorchFunctionMode):
    """Replaces functions whose tracing would fail."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        replaced = _REPLACED.get(func)
        return func(*args, **kwargs) if replaced is None else replaced(*args, **kwargs)


# Checks of data


@contextlib.contextmanager
def _without_checks() -> Iterator[None]:
    """Context manager in which a condition on data that only guards an exception takes the branch
    without the exception."""
    is_true = torch.Tensor.__bool__
    original = torch.Tensor.__dict__.get("__bool__")

    def truth(tensor: torch.Tensor) -> bool:
        if isinstance(tensor, (FakeTensor, FunctionalTensor)):
            passes = _passing(sys._getframe(1))
            if passes is not None:
                return passes
        return is_true(tensor)

    torch.Tensor.__bool__ = truth  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        if original is None:
            del torch.Tensor.__bool__
        else:
            torch.Tensor.__bool__ = original  # type: ignore[method-assign]


def _passing(frame: types.FrameType | None) -> bool | None:
    """The truth value without an exception, if the frame tests a value only to raise."""
    if frame is None:
        return None
    code = list(dis.get_instructions(frame.f_code))
    position = next((i for i, step in enumerate(code) if step.offset == frame.f_lasti), None)
    if position is None:
        return None
    if code[position].opname == "TO_BOOL":
        position += 1
    jump = code[position]
    if "JUMP" not in jump.opname or not jump.opname.endswith(("IF_FALSE", "IF_TRUE")):
        return None
    on = jump.opname.endswith("IF_TRUE")
    target = next((i for i, step in enumerate(code) if step.offset == jump.argval), len(code))
    if _raises(code, position + 1):
        return on
    return not on if _raises(code, target) else None


def _raises(code: list[dis.Instruction], start: int) -> bool:
    """Whether the code at this position raises before it branches."""
    for step in code[start:]:
        if step.opname == "RAISE_VARARGS":
            return True
        if "JUMP" in step.opname or step.opname.startswith(("RETURN", "STORE", "YIELD")):
            return False
    return False


# Functions


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor:
    """`functional.ctc_loss` by an operator of Kiln that gives the losses alone. The second result
    of torch's operator has a size that depends on data."""

    def lengths(given: Any) -> torch.Tensor:
        if isinstance(given, torch.Tensor):
            return given
        return torch.tensor(given, dtype=torch.int64)

    inputs, outputs = lengths(input_lengths), lengths(target_lengths)
    losses = _losses()(log_probs, targets, inputs, outputs, blank, zero_infinity)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return (losses / outputs.clamp_min(1).to(losses.dtype).to(losses.device)).mean()


_LOSSES: list[Any] = []


def _losses() -> Callable[..., torch.Tensor]:
    """The operator, registered at its first use."""
    if not _LOSSES:

        @torch.library.custom_op("kiln::ctc_losses", mutates_args=())
        def losses(
            log_probs: torch.Tensor,
            targets: torch.Tensor,
            input_lengths: torch.Tensor,
            target_lengths: torch.Tensor,
            blank: int,
            zero_infinity: bool,
        ) -> torch.Tensor:
            given = (log_probs, targets, input_lengths, target_lengths)
            return functional.ctc_loss(*given, blank, "none", zero_infinity)

        @losses.register_fake
        def _(
            log_probs: torch.Tensor,
            targets: torch.Tensor,
            input_lengths: torch.Tensor,
            target_lengths: torch.Tensor,
            blank: int,
            zero_infinity: bool,
        ) -> torch.Tensor:
            return log_probs.new_empty(log_probs.shape[1:-1])

        _LOSSES.append(losses)
    found: Callable[..., torch.Tensor] = _LOSSES[0]
    return found


def _multilabel_margin_loss(
    input: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """The loss of one vector as that of a batch of one: torch's trace has the wrong shape for
    vectors."""
    if input.dim() == 1:
        loss = functional.multilabel_margin_loss(input[None], target[None], *args, **kwargs)
        return loss.reshape(())
    return functional.multilabel_margin_loss(input, target, *args, **kwargs)


_REPLACED: dict[Any, Callable[..., Any]] = {
    functional.ctc_loss: _ctc_loss,
    functional.multilabel_margin_loss: _multilabel_margin_loss,
}
