"""A compiled program as a module of torch.

Weights, buffers, submodules and state dict are those of the module that was compiled, under the
same names. Calls run the program: hooks of submodules and the training mode have no effect on it.
Where the module has other weights than at compiling, the program is compiled again (`.to`,
`load_state_dict(assign=True)`, assignments), or the module runs eagerly
(`torch.func.functional_call`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from kiln import versions
from kiln._native import UsageError
from kiln.tracing.sources import warn

#: A weight, and where its memory is.
Place = tuple[torch.Tensor, int]

#: Autocast by kind of device: its dtype.
Autocast = dict[str, torch.dtype]


def autocast() -> Autocast:
    """The dtype of autocast by kind of device, where it is on.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast()
    {'cpu': torch.bfloat16}
    """
    if not versions.any_autocast():
        return {}
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return {kind: torch.get_autocast_dtype(kind) for kind in kinds}


def call_with_hooks(program: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call through `nn.Module.__call__`, which runs hooks and `forward`."""
    return nn.Module.__call__(program, *args, **kwargs)


class CompiledModule(nn.Module):
    """The part of `Compiled` that makes it a module of torch: weights, state dict, hooks, `.to`."""

    #: The module that was compiled; None for a program that came without one.
    _module: nn.Module | None
    #: Makes it where it costs time.
    _make_module: Callable[[], nn.Module] | None
    #: What serves calls: `_serve_fast`, or `call_with_hooks` where a call has to look at hooks or
    #: weights.
    _serve_call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
    _serve_fast: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
    #: Whether the next call has to look at weights.
    _weights_exposed: bool
    #: Whether weights were replaced by way of this module, for good.
    _weights_replaced: bool

    def __init__(
        self, module: nn.Module | None, make_module: Callable[[], nn.Module] | None = None
    ) -> None:
        fields = self.__dict__
        fields.update(_module=module, _make_module=make_module, _serve_call=call_with_hooks)
        fields.update(_weights_exposed=False, _weights_replaced=False)
        super().__init__()
        fields["training"] = module is not None and module.training
        #: The weights that the program was compiled with, by name.
        fields["_bound_weights"] = {} if module is None else _weights(module)
        fields["_autocast"] = autocast()
        fields["_warned"] = set()

    def _weights_module(self) -> nn.Module:
        """The module whose weights these are. As callers may replace weights of it, the next call
        checks them."""
        fields = self.__dict__
        if fields["_module"] is None:
            make_module = fields["_make_module"]
            loaded = nn.Module() if make_module is None else make_module()
            fields.update(_module=loaded, _bound_weights=_weights(loaded))
        fields.update(_serve_call=call_with_hooks, _weights_exposed=True)
        module: nn.Module = fields["_module"]
        return module

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warn(text)

    # What torch keeps in a module's own fields

    @property
    def _parameters(self) -> dict[str, nn.Parameter | None]:
        return self._weights_module()._parameters

    @_parameters.setter
    def _parameters(self, value: Any) -> None:
        """`nn.Module` sets an empty one."""

    @property
    def _buffers(self) -> dict[str, torch.Tensor | None]:
        return self._weights_module()._buffers

    @_buffers.setter
    def _buffers(self, value: Any) -> None:
        """`nn.Module` sets an empty one."""

    @property
    def _modules(self) -> dict[str, nn.Module | None]:
        return self._weights_module()._modules

    @_modules.setter
    def _modules(self, value: Any) -> None:
        """`nn.Module` sets an empty one."""

    @property
    def _non_persistent_buffers_set(self) -> set[str]:
        return self._weights_module()._non_persistent_buffers_set

    @_non_persistent_buffers_set.setter
    def _non_persistent_buffers_set(self, value: Any) -> None:
        """`nn.Module` sets an empty one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_module" not in self.__dict__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self._weights_module(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        fields = self.__dict__
        if name in fields or hasattr(type(self), name):
            object.__setattr__(self, name, value)
            return
        module = self._weights_module()
        if isinstance(value, (nn.Parameter, nn.Module)) or name in _names(module):
            setattr(module, name, value)
            fields["_weights_replaced"] = True
        else:
            fields[name] = value

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            del self.__dict__[name]
        else:
            delattr(self._weights_module(), name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._weights_module())})

    # What torch does to modules

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state dict of the module that was compiled."""
        return self._weights_module().state_dict(*args, **kwargs)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Mapping[str, Any], *args: Any
    ) -> None:
        self._weights_module()._load_from_state_dict(state_dict, prefix, local_metadata, *args)
        if local_metadata.get("assign_to_params_buffers"):
            self.__dict__["_weights_replaced"] = True

    def apply(self, fn: Callable[[nn.Module], None]) -> CompiledModule:
        """Applies a function to the module that was compiled, and to its parts."""
        self._weights_module().apply(fn)
        return self

    def train(self, mode: bool = True) -> CompiledModule:
        """Does nothing, and says so where the program was compiled in another mode."""
        if mode != self.training:
            kept = "training" if self.training else "evaluation"
            self._warn_once(
                f"{self} was compiled in {kept} mode and stays so: set the mode of the module, and "
                "compile it again"
            )
        return self

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """What `.to`, `.half` and the like call. It converts weights and example inputs. If that
        changes anything, the next call compiles the program again."""
        probe = torch.empty(0, device=self.device)
        moved = fn(probe)
        changes = moved.device != probe.device or moved.dtype != probe.dtype
        if changes and not self._can_move():
            raise UsageError(
                f"{self} is for {self.device}, and was not compiled from a module: load it with "
                "another `device`, or compile the module where it is to run"
            )
        module = self._weights_module()
        before = _weights(module)
        module._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if changes or _differ(before, _weights(module)):
            self.__dict__["_weights_replaced"] = True
            self._move_examples(fn)
        return self

    def _can_move(self) -> bool:
        raise NotImplementedError

    def _move_examples(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        raise NotImplementedError

    # What a call has to know

    def _has_hooks(self) -> bool:
        return bool(self._forward_hooks or self._forward_pre_hooks)

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        """As of a module: the hook runs after each call of the program."""
        self.__dict__["_serve_call"] = call_with_hooks
        return super().register_forward_hook(*args, **kwargs)

    def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> Any:
        """As of a module: the hook runs before each call of the program."""
        self.__dict__["_serve_call"] = call_with_hooks
        return super().register_forward_pre_hook(*args, **kwargs)

    def _has_bound_weights(self) -> bool:
        """Whether the module still has the weights that the program was compiled with."""
        return self._module is None or not _differ(self._bound_weights, _weights(self._module))

    def _has_moved(self) -> bool:
        """Whether the weights are the same tensors as at compiling, with some in other memory."""
        weights = {} if self._module is None else _weights(self._module)
        same = self._bound_weights.keys() == weights.keys()
        return same and all(
            tensor is weights[name][0] for name, (tensor, _) in self._bound_weights.items()
        )

    def _warn_of_autocast(self) -> None:
        """Warns if autocast is set otherwise than at compiling."""
        current = autocast()
        if current != self._autocast:
            on = (
                f"autocast to {', '.join(map(str, current.values()))}"
                if current
                else "autocast off"
            )
            self._warn_once(
                f"{self} runs as it was compiled, and not with {on}: compile it where autocast is "
                "as at its calls"
            )


def _names(module: nn.Module) -> set[str]:
    return {*module._parameters, *module._buffers, *module._modules}


def _weights(module: nn.Module) -> dict[str, Place]:
    """The weights and buffers of a module, and where their memory is, by name."""
    named = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return {name: (tensor, _address(tensor)) for name, tensor in named}


def _differ(before: Mapping[str, Place], after: Mapping[str, Place]) -> bool:
    if before.keys() != after.keys():
        return True
    pairs = ((before[name], after[name]) for name in before)
    return any(a is not b or x != y for (a, x), (b, y) in pairs)


def _address(tensor: torch.Tensor) -> int:
    """The address of the memory of a tensor; 0 for tensors without memory, as under tracing."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def moved(tree: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The tree with `fn` applied to each tensor.

    >>> moved((torch.ones(1), 2), torch.Tensor.half)
    (tensor([1.], dtype=torch.float16), 2)
    """
    return pytree.tree_map_only(torch.Tensor, fn, tree)


def is_traced(leaf: Any) -> bool:
    """Whether an argument is a proxy or fake tensor of tracing, or is wrapped by a transform of
    `torch.func`.

    >>> is_traced(torch.ones(1))
    False
    """
    if isinstance(leaf, fx.Proxy):
        return True
    if not isinstance(leaf, torch.Tensor):
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(leaf)
    return wrapped or isinstance(leaf, (FakeTensor, FunctionalTensor))
