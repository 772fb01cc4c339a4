"""What a module does in tracing beside operators: checks of data, attributes, and functions that
torch cannot trace.

Checks of data (`if torch.any(x < 0): raise ...`, `assert`) are left out: a compiled program cannot
raise by its data without waiting for the device. Tensors that `forward` assigns to attributes of
its modules are taken down, since torch.export would drop them.
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
        """Whether a tensor was replaced by one like it."""
        old = self.before
        same = isinstance(old, torch.Tensor) and not isinstance(old, nn.Parameter)
        return same and (tuple(old.shape), old.dtype) == (self.shape, self.dtype)


@contextlib.contextmanager
def watched(module: nn.Module) -> Iterator[list[Assigned]]:
    """Meanwhile calls of a module are traced without checks of data. Collects what they assign to
    attributes, which are as before afterwards."""
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
    own = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield found
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own
        for a in found:
            if a.was_there:
                a.module.__dict__[a.name] = a.before
            else:
                a.module.__dict__.pop(a.name, None)


def _tensors(module: nn.Module) -> dict[tuple[str, str], Any]:
    """The plain attributes of all modules within, by path and name."""
    return {
        (path, name): value
        for path, part in module.named_modules()
        for name, value in part.__dict__.items()
        if not name.startswith("_") or isinstance(value, torch.Tensor)
    }


_Buffers = list[tuple[nn.Module, str, str, torch.Tensor]]


def _buffers(module: nn.Module) -> _Buffers:
    """The buffers of all modules within: module, name, path and tensor."""
    return [
        (part, name, f"{path}.{name}" if path else name, buffer)
        for path, part in module.named_modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]


def _written_back(module: nn.Module, before: _Buffers, result: Any) -> Any:
    """Writes tensors that were assigned to buffers into the buffers: torch.export sees assignments
    to those of the outer module alone. Gives the result, without what it shares with them."""
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

        def apart(tensor: torch.Tensor, memory: int = memory) -> torch.Tensor:
            return tensor.clone() if tensor.untyped_storage()._cdata == memory else tensor

        result = tree_map_only(torch.Tensor, apart, result)
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
            whole = f"{path}.{name}" if path else name
            there = (path, name) in before
            found.append(Assigned(parts[path], whole, name, there, old, shape, value.dtype))
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
    """Meanwhile a traced tensor is true where it is only tested for an exception, whichever way
    there is none."""
    read = torch.Tensor.__bool__
    own = torch.Tensor.__dict__.get("__bool__")

    def truth(tensor: torch.Tensor) -> bool:
        if isinstance(tensor, (FakeTensor, FunctionalTensor)):
            passes = _passing(sys._getframe(1))
            if passes is not None:
                return passes
        return read(tensor)

    torch.Tensor.__bool__ = truth  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        if own is None:
            del torch.Tensor.__bool__
        else:
            torch.Tensor.__bool__ = own  # type: ignore[method-assign]


def _passing(frame: types.FrameType | None) -> bool | None:
    """The truth that goes on, where a frame tests a value and raises by the other one."""
    if frame is None:
        return None
    code = list(dis.get_instructions(frame.f_code))
    at = next((i for i, step in enumerate(code) if step.offset == frame.f_lasti), None)
    if at is None:
        return None
    if code[at].opname == "TO_BOOL":
        at += 1
    jump = code[at]
    if "JUMP" not in jump.opname or not jump.opname.endswith(("IF_FALSE", "IF_TRUE")):
        return None
    on = jump.opname.endswith("IF_TRUE")
    target = next((i for i, step in enumerate(code) if step.offset == jump.argval), len(code))
    if _raises(code, at + 1):
        return on
    return not on if _raises(code, target) else None


def _raises(code: list[dis.Instruction], at: int) -> bool:
    """Whether what follows ends in an exception, without a branch."""
    for step in code[at:]:
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
    """`functional.ctc_loss`, whose operator has a result of a size that depends on data: one
    operator that gives the losses alone."""

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
    """The operator, which is made at its first use: to make one takes torch some time."""
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
    """Of vectors torch's own trace has another shape than the operator's result."""
    if input.dim() == 1:
        loss = functional.multilabel_margin_loss(input[None], target[None], *args, **kwargs)
        return loss.reshape(())
    return functional.multilabel_margin_loss(input, target, *args, **kwargs)


_REPLACED: dict[Any, Callable[..., Any]] = {
    functional.ctc_loss: _ctc_loss,
    functional.multilabel_margin_loss: _multilabel_margin_loss,
}
