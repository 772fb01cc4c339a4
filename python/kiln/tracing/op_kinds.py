"""What an operator's schema and tags say of a call of it: whether it is composite, gives views,
writes, draws random numbers, or reads data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from kiln.tracing import layouts, shapes
from kiln.tracing.schemas import READS_DATA

#: Composite operators that are decomposed although their schemas say nothing of views
#: (`composites.VIEWS`), or that would be refused whole.
ALIASING = frozenset(
    {
        "aten::meshgrid",
        "aten::broadcast_tensors",
        "aten::type_as",
        "aten::sum_to_size",
        "aten::atleast_1d",
        "aten::atleast_2d",
        "aten::atleast_3d",
    }
)
#: The same of those that are views of a single operand.
ALIASING_ONE = frozenset({"aten::einsum", "aten::chain_matmul", "aten::linalg_multi_dot"})

#: Composite operators that are the identity where they are not in training.
_DROPOUTS = frozenset(
    {
        "aten::dropout",
        "aten::feature_dropout",
        "aten::alpha_dropout",
        "aten::feature_alpha_dropout",
        "aten::dropout_",
        "aten::feature_dropout_",
        "aten::alpha_dropout_",
        "aten::feature_alpha_dropout_",
    }
)

#: Composite operators that give a view or a copy, as the strides of their operand ask for.
_VIEW_OR_COPY = frozenset({"aten::reshape", "aten::contiguous", "aten::flatten", "aten::to"})


@dataclass(frozen=True)
class Kind:
    """What an operator's schema and tags say."""

    #: Why it is never recorded.
    refused: str = ""
    #: Whether it does nothing where no gradients are computed.
    identity: bool = False
    composite: bool = False
    #: Whether it may give views, or writes.
    aliases: bool = False
    #: Arguments that it writes to.
    writes: tuple[str, ...] = ()
    #: Whether its result is a view or a copy, as strides ask for.
    view_or_copy: bool = False
    #: Whether the strides of its result are known on the device alone.
    order_by_device: bool = False
    #: Whether the order in memory of its result is that of a library (`layouts`).
    order_by_library: bool = False
    dropout: bool = False
    draws: bool = False
    #: The argument that says whether statistics are updated.
    trains: str = ""
    masks: bool = False
    lifts: bool = False
    #: Whether it gives numbers, and no tensors.
    numbers: bool = False
    #: The position of the argument `device`.
    device: int | None = None


@cache
def kind_of(func: Any) -> Kind:
    """The kind of an operator."""
    if not isinstance(func, torch._ops.OpOverload):
        return Kind(refused="is no operator")
    schema, tags = func._schema, func.tags
    name = schema.name
    if name in READS_DATA or torch.Tag.data_dependent_output in tags:
        return Kind(refused="reads elements")
    if name == "aten::detach_":
        return Kind(identity=True)
    if torch.Tag.inplace_view in tags or name in ("aten::set_", "aten::resize"):
        return Kind(refused="changes what a tensor is")
    masks = name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_unsafe_index")
    if torch.Tag.dynamic_output_shape in tags and not masks:
        return Kind(refused="has results whose sizes depend on data")
    names = [a.name for a in schema.arguments]
    written = tuple(
        a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
    )
    composite = func._can_decompose()
    aliasing = getattr(torch.Tag, "maybe_aliasing_or_mutating", None)
    trains = {"aten::batch_norm": "training", "aten::instance_norm": "use_input_stats"}
    returned = [str(r.type) for r in schema.returns]
    given = {"Tensor", "Tensor[]", "List[Tensor]", "Optional[Tensor]", "Tensor?"}
    numbers = bool(returned) and not any(r in given for r in returned)
    if numbers and any(r not in given for r in returned) and composite:
        return Kind(composite=True, aliases=True)
    return Kind(
        composite=composite,
        aliases=any(a.alias_info is not None for a in (*schema.arguments, *schema.returns))
        or (aliasing in tags and name not in trains),
        writes=written,
        view_or_copy=name in _VIEW_OR_COPY,
        order_by_device=name in shapes.ORDER_BY_DEVICE,
        order_by_library=name in layouts.KNOWN,
        dropout=name in _DROPOUTS,
        draws=torch.Tag.nondeterministic_seeded in tags,
        trains=trains.get(name, "training" if composite and "training" in names else ""),
        masks=masks,
        lifts=name in ("aten::lift_fresh", "aten::lift_fresh_copy", "aten::lift"),
        numbers=numbers,
        device=names.index("device") if "device" in names else None,
    )


def is_deterministic(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call draws no random numbers and updates no batch statistics.

    >>> dropout, x = torch.ops.aten.dropout.default, torch.ones(1)
    >>> [is_deterministic(dropout, (x, 0.5, train), {}) for train in (False, True)]
    [True, False]
    """
    kind = kind_of(func)
    if kind.trains and argument(func, args, kwargs, kind.trains):
        return argument(func, args, kwargs, "running_mean") is None
    if kind.dropout:
        drawn = argument(func, args, kwargs, "train") and argument(func, args, kwargs, "p")
        return not drawn
    if not kind.draws:
        return True
    names = {a.name for a in func._schema.arguments}
    for name in ("train", "training"):
        if name in names and argument(func, args, kwargs, name) is False:
            return True
    return any(
        name in names and argument(func, args, kwargs, name) == 0
        for name in ("dropout_p", "dropout")
    )


def argument(func: Any, args: Sequence[Any], kwargs: dict[str, Any], name: str) -> Any:
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            if i < len(args):
                return args[i]
            default = argument.default_value if argument.has_default_value() else None
            return kwargs.get(name, default)
    return None
