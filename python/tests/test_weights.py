"""`torch.compile` with the backend: which weights a call takes, and when they are let go."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from agreement import X, compiled, same
from torch import nn

from kiln import pieces
from kiln.lowering import runner


def test_layers_of_one_class_share_a_graph_and_not_their_weights():
    first, second = nn.Linear(4, 4).eval(), nn.Linear(4, 4).eval()
    with torch.no_grad(), pieces.collecting() as found:
        runs = [compiled(layer) for layer in (first, second)]
        for _ in range(2):
            same(runs[0](X), first(X))
            same(runs[1](X), second(X))
    assert sum(len(piece.engines) for piece in found) == 2


def test_a_replaced_parameter_is_used():
    layer = nn.Linear(4, 4).eval()
    with torch.no_grad():
        run = compiled(layer)
        run(X)
        layer.weight = nn.Parameter(torch.eye(4))
        same(run(X), layer(X))


def test_engines_go_with_their_parameters():
    layer = nn.Linear(4, 4).eval()

    def call(layer, x):
        return layer(x)

    with torch.no_grad(), pieces.collecting() as found:
        run = compiled(call)
        run(layer, X)
        (piece,) = found
        assert len(piece.engines) == 1
        weight = weakref.ref(layer.weight)
        del layer
        gc.collect()
        assert weight() is None
        assert piece.engines == []
        other = nn.Linear(4, 4).eval()
        same(run(other, X), other(X))


def folded():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()


def test_written_weights_are_taken_up():
    layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).eval()
    x, run = torch.randn(32, 64), compiled(layers, fallback="torch")
    step = torch.optim.SGD(layers.parameters(), lr=0.5)
    with torch.no_grad():
        before = run(x)
    layers(x).square().sum().backward()
    step.step()
    with torch.no_grad():
        same(run(x), layers(x))
        assert not torch.equal(run(x), before)


def test_loaded_weights_are_taken_up():
    module, x = folded(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        run = compiled(module)
        run(x)
        new = {k: v if v.dtype is torch.int64 else v + 1 for k, v in module.state_dict().items()}
        module.load_state_dict(new)
        same(run(x), module(x))


def test_weights_with_other_memory_are_taken_up():
    module, x = folded(), torch.randn(2, 3, 8, 8)
    with torch.no_grad(), pieces.collecting() as found:
        run = compiled(module)
        run(x)
        for _ in range(3):
            module[0].weight.data = torch.randn(4, 3, 3, 3)
            same(run(x), module(x))
        module[1].bias.set_(torch.randn(4))
        same(run(x), module(x))
        module[0].weight.mul_(2)
        same(run(x), module(x))
    # Those of the memory before are gone.
    assert [len(piece.engines) for piece in found] == [1]


def test_frozen_weights_are_not_looked_at(monkeypatch):
    layer = nn.Linear(4, 4).eval()
    monkeypatch.setattr(runner.Engine, "changed", None)
    with torch.no_grad():
        run = compiled(layer, weights="frozen")
        same(run(X), layer(X))
        same(run(X), layer(X))


@pytest.mark.fake
def test_checked_weights_are_taken_up_again():
    layer = nn.Linear(4, 4).eval()
    with torch.no_grad(), pieces.collecting() as found:
        run = compiled(layer)
        same(run(X), layer(X))
        (engine,) = found[0].engines
        run(X)
        assert engine.refreshed == 0
        layer.weight.mul_(2)
        same(run(X), layer(X))
        assert engine.refreshed == 1
        layer.weight.data = torch.eye(4)
        same(run(X), layer(X))
        assert found[0].engines != [engine]


@pytest.mark.fake
def test_checked_weights_that_changed_while_others_were_used():
    first, second = nn.Linear(4, 4).eval(), nn.Linear(4, 4).eval()

    def call(layer, x):
        return layer(x)

    with torch.no_grad(), pieces.collecting() as found:
        run = compiled(call)
        run(first, X)
        run(second, X)
        first.weight.mul_(2)
        same(run(first, X), first(X))
        same(run(second, X), second(X))
    refreshed = [engine.refreshed for piece in found for engine in piece.engines]
    assert sorted(refreshed) == [0, 1]
