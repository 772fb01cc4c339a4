"""Arguments of a call, as a program takes them.

A program takes flat inputs in the order of its example inputs. A call may pass the same by position
or by name, leave out what has a default or pass the default, and give lists for tuples.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kiln import versions
from kiln._native import InputError

#: Arguments by position, and by name.
Call = tuple[tuple[Any, ...], dict[str, Any]]

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_AGAIN = "call it as it was compiled, or compile it again with such example inputs"


def of_examples(example_inputs: Any, kwargs: Mapping[str, Any] | None = None) -> Call:
    """Positional and keyword arguments: of a tuple or list, a dict by name, or one value.

    >>> of_examples((1, 2)), of_examples({"x": 1}), of_examples(3, {"y": 4})
    (((1, 2), {}), ((), {'x': 1}), ((3,), {'y': 4}))
    """
    named = dict(kwargs or {})
    if example_inputs is None:
        return (), named
    if isinstance(example_inputs, Mapping) and all(isinstance(k, str) for k in example_inputs):
        return (), {**example_inputs, **named}
    if type(example_inputs) in (tuple, list):
        return tuple(example_inputs), named
    return (example_inputs,), named


def check(signature: inspect.Signature, name: str, args: Sequence[Any], kwargs: Any) -> None:
    """Fails unless example inputs can be passed.

    >>> check(inspect.signature(lambda x, y=1: x), "f", (2,), {})
    """
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        listed = ", ".join(signature.parameters)
        raise InputError(
            f"the example inputs do not fit {name}({listed}): {error}; pass a tuple of its "
            "arguments, or a dict of them by name (an argument that is a dict goes in a tuple, as "
            "({...},))"
        ) from None


def flatten(
    spec: pytree.TreeSpec,
    signature: inspect.Signature | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> list[Any]:
    """The leaves of a call in the order of a program's inputs.

    `spec`: the nesting of the example inputs, `(args, kwargs)`. `signature`: of what was compiled;
    None where it is not known.

    >>> spec = pytree.tree_structure(((1, (2, 3)), {}))
    >>> flatten(spec, inspect.signature(lambda x, y, z=4: x), (), {"y": [6, 7], "x": 5, "z": 4})
    [5, 6, 7]
    """
    leaves, given = pytree.tree_flatten((args, kwargs))
    if given == spec:
        return leaves
    positional, keywords = versions.children(spec)
    names = list(keywords.context or ())
    if signature is not None:
        args, kwargs = _as_compiled(signature, positional.num_children, names, args, kwargs)
    if len(args) != positional.num_children or set(kwargs) != set(names):
        raise InputError(
            f"the program was called with {_counted(len(args), list(kwargs))}, and compiled for "
            f"{_counted(positional.num_children, names)}: {_AGAIN}"
        )
    found: list[Any] = []
    for i, (child, value) in enumerate(zip(versions.children(positional), args, strict=True)):
        _collect(child, value, _name(signature, i), found)
    for name, child in zip(names, versions.children(keywords), strict=True):
        _collect(child, kwargs[name], name, found)
    return found


def _as_compiled(
    signature: inspect.Signature,
    count: int,
    names: Sequence[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Call:
    """The same arguments, given by position or by name as the example inputs were."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(f"the program was called wrongly: {error}") from None
    by_name: dict[str, Any] = {}
    variadic: tuple[Any, ...] = ()
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            variadic = value
        elif kind is inspect.Parameter.VAR_KEYWORD:
            by_name.update(value)
        else:
            by_name[name] = value
    parameter_names = [p.name for p in signature.parameters.values() if p.kind in _BY_POSITION]
    positional_names = parameter_names[:count]
    for name in (*positional_names, *names):
        if name not in by_name and name in signature.parameters:
            default = signature.parameters[name].default
            if default is not inspect.Parameter.empty:
                by_name[name] = default
    example_names = {*positional_names, *names}
    for name in [n for n in by_name if n not in example_names]:
        parameter = signature.parameters.get(name)
        if parameter is not None and _same(by_name[name], parameter.default):
            del by_name[name]
        elif parameter is not None and parameter.default is not inspect.Parameter.empty:
            raise InputError(
                f"argument `{name}` was not among the example inputs, so the program has its "
                f"default, {parameter.default!r}: compile it again with such a `{name}`"
            )
    if not example_names <= set(by_name):
        return args, kwargs
    by_position = (*(by_name[n] for n in positional_names), *variadic)
    return by_position, {n: v for n, v in by_name.items() if n not in positional_names}


def _same(value: Any, default: Any) -> bool:
    """Whether an argument is its default."""
    if value is default:
        return True
    if isinstance(value, torch.Tensor) or type(value) is not type(default):
        return False
    return bool(value == default)


def _collect(spec: pytree.TreeSpec, value: Any, path: str, leaves: list[Any]) -> None:
    """Adds the leaves of an argument, in the order of its example."""
    if spec.is_leaf():
        leaves.append(value)
        return
    children = versions.children(spec)
    kind = spec.type
    if kind in (list, tuple) and isinstance(value, (list, tuple)):
        if len(value) == len(children):
            for i, (child, item) in enumerate(zip(children, value, strict=True)):
                _collect(child, item, f"{path}[{i}]", leaves)
            return
        raise InputError(
            f"argument `{path}` has {len(value)} items, and {len(children)} in the example "
            f"inputs: {_AGAIN}"
        )
    if isinstance(kind, type) and issubclass(kind, dict) and isinstance(value, Mapping):
        keys = spec.context[1] if isinstance(spec.context, tuple) else spec.context
        if isinstance(keys, list) and set(keys) == set(value):
            for key, child in zip(keys, children, strict=True):
                _collect(child, value[key], f"{path}[{key!r}]", leaves)
            return
        raise InputError(
            f"argument `{path}` has the keys {list(value)}, and {keys} in the example inputs: "
            f"{_AGAIN}"
        )
    items, given = pytree.tree_flatten(value)
    if given != spec:
        raise InputError(
            f"argument `{path}` is {_nesting(given)}, and {_nesting(spec)} in the example "
            f"inputs: {_AGAIN}"
        )
    leaves += items


def check_kinds(names: Sequence[str], shapes: Sequence[Any], leaves: Sequence[Any]) -> None:
    """Fails where a tensor was given for what was none among the example inputs, or None for a
    tensor.

    `shapes`: of each input, None for what is no tensor.

    >>> check_kinds(["x"], [[3]], [torch.ones(3)])
    """
    for name, shape, leaf in zip(names, shapes, leaves, strict=False):
        if shape is None and isinstance(leaf, torch.Tensor):
            description, example = "a tensor", "none"
        elif shape is not None and leaf is None:
            description, example = "None", "a tensor"
        else:
            continue
        raise InputError(
            f"input `{name}` is {description}, and was {example} among the example inputs: compile "
            "it again with such an input"
        ) from None


def _nesting(spec: pytree.TreeSpec) -> str:
    """A nesting in words: the types of the outer two levels.

    >>> _nesting(pytree.tree_structure([1, (2, 3)]))
    'list(leaf, tuple of 2)'
    """
    if spec.is_leaf():
        return "a leaf"
    items = [
        "leaf" if child.is_leaf() else f"{child.type.__name__} of {child.num_children}"
        for child in versions.children(spec)
    ]
    return f"{spec.type.__name__}({', '.join(items)})"


def _counted(positional: int, names: Sequence[str]) -> str:
    """How arguments are passed, in words.

    >>> _counted(1, ["mask"])
    '1 positional argument and keyword mask'
    """
    plural = "" if positional == 1 else "s"
    parts = [f"{positional} positional argument{plural}"] if positional or not names else []
    if names:
        parts.append(f"keyword{'' if len(names) == 1 else 's'} {', '.join(names)}")
    return " and ".join(parts)


def _name(signature: inspect.Signature | None, position: int) -> str:
    """What a positional argument is called."""
    if signature is not None:
        for i, parameter in enumerate(signature.parameters.values()):
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                return f"{parameter.name}[{position - i}]"
            if i == position and parameter.kind in _BY_POSITION:
                return parameter.name
    return f"{position}"
