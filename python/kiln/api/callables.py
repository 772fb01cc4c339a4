"""What `kiln.compile` takes: modules, functions, methods and other callables, as a module.

A callable becomes the `forward` of a module that has the modules which the callable uses as parts,
so that their weights are parameters of the program. Wrappers of modules are taken off, or named
where they hide the weights.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kiln import versions
from kiln._native import UnsupportedError, UsageError

#: Packages whose functions use no modules of users.
_LIBRARIES = frozenset({"torch", "builtins", "numpy"})


class Function(nn.Module):
    """A callable as a module; its parts are the modules that the callable uses.

    >>> Function(lambda x: x + 1)(2)
    3
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.name = name_of(function)
        self.forward = _with_signature(function)
        for name, part in _parts(function):
            self.add_module(self._free(name), part)
        # As the parts, so that training mode is told of where it matters.
        self.training = any(part.training for part in self.children())

    def _free(self, name: str) -> str:
        """A name like this one that no part has."""
        name = name.replace(".", "_")
        while hasattr(self, name):
            name += "_"
        return name


def module_of(target: Any) -> nn.Module:
    """The module to compile for what the user gave. Raises `kiln.UsageError` for what cannot be
    called, and `kiln.UnsupportedError` for a module whose weights are spread over processes.

    >>> layer = nn.Linear(1, 1)
    >>> module_of(layer) is layer, type(module_of(layer.forward)).__name__
    (True, 'Function')
    """
    target = _unwrapped(target)
    if isinstance(target, nn.Module):
        return target
    if isinstance(target, type) or not callable(target):
        raise UsageError(
            f"kiln.compile was given {a(target)}: pass a torch.nn.Module, a function, or the "
            "result of torch.export.export"
        )
    return Function(target)


def name_of(target: Any) -> str:
    """What a module or callable is called in reports.

    >>> name_of(nn.Linear(1, 1)), name_of(functools.partial(max, 1)), name_of(nn.ReLU().forward)
    ('Linear', 'max', 'ReLU.forward')
    """
    target = _unwrapped(target)
    if isinstance(target, Function):
        return target.name
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, types.MethodType):
        return f"{type(target.__self__).__name__}.{target.__name__}"
    return str(getattr(target, "__name__", type(target).__name__)).replace("<lambda>", "lambda")


def hooked(module: nn.Module) -> list[str]:
    """The names of parts with hooks of users on their calls.

    >>> hooked(nn.Linear(1, 1))
    []
    """
    found = []
    for name, part in module.named_modules():
        hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
        if any(getattr(h, "__module__", "").partition(".")[0] != "torch" for h in hooks):
            found.append(name or "the module")
    return found


def a(value: Any) -> str:
    """The kind of a value with its article.

    >>> a([]), a(3)
    ('a list', 'an int')
    """
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    kind = f"the class {name}" if isinstance(value, type) else name
    if isinstance(value, type):
        return kind
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


def _unwrapped(target: Any) -> Any:
    """The module or callable within wrappers that only replicate or compile it."""
    while True:
        if isinstance(target, torch.jit.ScriptModule):
            raise UsageError(
                "kiln.compile was given a TorchScript module: pass the module that it was made "
                "of; archives of TorchScript are for the command `kiln`"
            )
        sharded = versions.sharding(target)
        if sharded:
            raise UnsupportedError(
                f"{type(target).__name__} is wrapped by {sharded}, so each process has a part of "
                "its weights: compile the module without it, or use "
                'torch.compile(model, backend="kiln")'
            )
        inner = _inner(target)
        if inner is None:
            return target
        target = inner


def _with_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """The callable as torch.export takes it: with code, or at least arguments of its own."""
    if isinstance(function, (types.FunctionType, types.MethodType, functools.partial)):
        return function
    if isinstance(getattr(type(function), "__call__", None), types.FunctionType):  # noqa: B004
        return functools.partial(function)

    def builtin(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return builtin


def _inner(target: Any) -> Any:
    if isinstance(target, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        # Without gradients they only call it.
        return target.module
    fields = getattr(target, "__dict__", {})
    if "_orig_mod" in fields.get("_modules", {}):
        return target._orig_mod
    return fields.get("_torchdynamo_orig_callable")


def _parts(function: Callable[..., Any]) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules that a callable uses, each once, the outer one of nested modules alone."""
    seen: set[int] = set()
    found: list[tuple[str, nn.Module]] = []
    waiting: list[tuple[str, Any]] = [("", function)]
    while waiting:
        name, value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            found.append((name or "module", value))
        else:
            waiting += _used(name, value)
    within = {id(m) for _, module in found for m in module.modules() if m is not module}
    return ((name, module) for name, module in found if id(module) not in within)


def _used(name: str, value: Any) -> list[tuple[str, Any]]:
    """What a value uses where it is called, with names."""
    if isinstance(value, functools.partial):
        return [("", value.func), ("argument", [*value.args, *value.keywords.values()])]
    if isinstance(value, types.MethodType):
        return [("self", value.__self__), ("", value.__func__)]
    if isinstance(value, types.FunctionType):
        if (value.__module__ or "").partition(".")[0] in _LIBRARIES and not value.__closure__:
            return []
        try:
            variables = inspect.getclosurevars(value)
        except ValueError:
            # A variable of the closure that has no value yet.
            return []
        return [*variables.nonlocals.items(), *variables.globals.items()]
    if isinstance(value, (list, tuple, dict)):
        leaves = pytree.tree_leaves(value)
        return [(f"{name}{i}", m) for i, m in enumerate(leaves) if isinstance(m, nn.Module)]
    if isinstance(value, (types.ModuleType, type)) or type(value).__module__ in _LIBRARIES:
        return []
    # An object: the modules that it has, and what calling it does.
    fields = getattr(value, "__dict__", {})
    kinds = (nn.Module, list, tuple, dict)
    call = getattr(type(value), "__call__", None)  # noqa: B004
    return [*((n, v) for n, v in fields.items() if isinstance(v, kinds)), ("", call)]
