"""What tests of the backend share: calling a function eagerly and compiled, and comparing."""

from __future__ import annotations

import copy
from collections import OrderedDict

import torch
from torch import nn

from kiln import pieces
from kiln.api import backend

X = torch.arange(12.0).reshape(3, 4) - 5


def compiled(f, dynamic=None, fullgraph=True, **options):
    options.setdefault("fallback", "error")
    return torch.compile(
        f, backend=backend.kiln, dynamic=dynamic, fullgraph=fullgraph, options=options
    )


def same(got, want):
    """Equal nesting, types, dtypes and shapes; values equal but for rounding."""
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, equal_nan=True)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            same(got[key], want[key])
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            same(a, b)
    elif hasattr(want, "__dataclass_fields__"):
        same(vars(got), vars(want))
    else:
        assert got == want


@torch.no_grad()
def agree(f, *args, dynamic=None, fullgraph=True, calls=2, **kwargs):
    """Calls `f` eagerly and compiled on copies: results and inputs must agree, call by call."""
    module = isinstance(f, nn.Module)
    eager = copy.deepcopy(f) if module else f
    run = compiled(f, dynamic, fullgraph)
    ours, theirs = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
    with pieces.collecting() as found:
        for _ in range(calls):
            got, want = run(*ours[0], **ours[1]), eager(*theirs[0], **theirs[1])
            same(got, want)
            same(ours, theirs)
    if module:
        same(OrderedDict(f.state_dict()), OrderedDict(eager.state_dict()))
    assert found and all(p.state == "compiled" or "no operators" in p.reason for p in found)
    return found
