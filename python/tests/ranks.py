"""What `test_distributed.py` runs in each of two processes: `torchrun ranks.py FOLDER`.

Every case compares a compiled model with what one process computes eagerly. Each process writes
what became of each case to `FOLDER/RANK.json`: an empty text, or the traceback.
"""

from __future__ import annotations

import datetime
import json
import logging
import logging.handlers
import sys
import time
import traceback
from pathlib import Path

import llama
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import gelu

import kiln
from kiln import pieces

#: A collective that some process does not join fails after this.
PATIENCE = datetime.timedelta(seconds=60)

CASES = {}


def case(run):
    CASES[run.__name__] = run
    return run


def compiled(f, dynamic=False, **options):
    options = {"fallback": "error"} | options
    return torch.compile(f, backend="kiln", fullgraph=True, dynamic=dynamic, options=options)


def run(f, *args, dynamic=False, calls=2):
    """The result of the last call, and the one piece that ran it."""
    entry, notes = compiled(f, dynamic), logging.handlers.BufferingHandler(100)
    pieces.log.setLevel(logging.INFO)
    pieces.log.addHandler(notes)
    try:
        with pieces.collecting() as found:
            for _ in range(calls):
                result = entry(*args)
    finally:
        pieces.log.removeHandler(notes)
    (piece,) = found
    # Distributed tensors decompose what they have no rule for; the rest stays whole.
    assert not any("decomposed" in note.getMessage() for note in notes.buffer)
    assert piece.state == "compiled", piece.reason
    return result, piece


def whole(t):
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def close(got, want):
    torch.testing.assert_close(whole(got), want)


def collectives(piece):
    """Names of the collectives in the order in which they run."""
    (engine,) = piece.engines
    return [name.rpartition("::")[2] for name in engine.fallbacks() if not name.startswith("aten")]


def mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def mine(*each):
    return each[dist.get_rank()]


class MLP(nn.Module):
    def __init__(self, width=16, hidden=32):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(gelu(self.up(x)))


MLP_PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def block():
    return llama.Block(width=32, heads=4, shared=4, hidden=64, bias=True)


def block_inputs(tokens):
    angles = torch.arange(tokens)[:, None] * 0.1 ** torch.arange(4).repeat(2)
    return torch.randn(2, tokens, 32), angles.cos(), angles.sin()


@case
def mlp():
    model, x = MLP(), torch.randn(5, 16)
    want = model(x)
    got, piece = run(parallelize_module(model, mesh(), MLP_PLAN), x)
    close(got, want)
    assert collectives(piece) == ["all_reduce"]


@case
def block_with_its_heads_sharded():
    model, args = block(), block_inputs(6)
    want = model(*args)
    got, piece = run(parallelize_module(model, mesh(), llama.plan()), *args)
    close(got, want)
    assert collectives(piece) == ["all_reduce", "all_reduce"]
    # Attention stays whole although the projections around it are sharded.
    assert "attention" in piece.engines[0].plan()


@case
def block_with_sequences_sharded():
    model, args = block(), block_inputs(6)
    want = model(*args)
    model = parallelize_module(model, mesh(), llama.plan(sequence=True))
    x = distribute_tensor(args[0], mesh(), [Shard(1)]).to_local()
    got, piece = run(model, x, *args[1:])
    close(got, mine(*want.chunk(2, 1)))
    assert collectives(piece) == ["all_gather_into_tensor", "reduce_scatter_tensor"] * 2


@case
def shapes_that_change():
    model = MLP()
    ours = compiled(
        parallelize_module(
            nn.Sequential(model), mesh(), {"0.up": ColwiseParallel(), "0.down": RowwiseParallel()}
        ),
        True,
    )
    torch.manual_seed(0)
    whole_model = MLP()
    with pieces.collecting() as found:
        for rows in (4, 6, 9):
            x = torch.randn(rows, 16)
            close(ours(x), whole_model(x))
    assert [p.state for p in found] == ["compiled"]


@case
def weights_of_distributed_tensors_are_parameters():
    """Changes are seen where they are looked for, though they count in the wrapper alone."""
    model, x = parallelize_module(MLP(), mesh(), MLP_PLAN), torch.randn(5, 16)
    entry = compiled(model, weights="checked")
    with pieces.collecting() as found:
        entry(x)
        model.up.weight.mul_(2.0)
        changed = entry(x)
    torch.manual_seed(0)
    same = MLP()
    same.up.weight.data.mul_(2.0)
    close(changed, same(x))
    (engine,) = found[0].engines
    assert engine.plan().count("= param @") == 4, engine.plan()


@case
def every_collective():
    x, group = torch.arange(12.0).reshape(4, 3) + dist.get_rank(), dist.group.WORLD
    gives, takes = [1, 3], mine([1, 1], [3, 3])

    def both(results):
        first, second = results
        return first - second * 3

    calls = {
        "all_reduce": lambda t: functional.all_reduce(t, "max", group),
        "all_gather_into_tensor": lambda t: functional.all_gather_tensor(t, 0, group),
        "reduce_scatter_tensor": lambda t: functional.reduce_scatter_tensor(t, "sum", 0, group),
        "all_to_all_single": lambda t: functional.all_to_all_single(t, takes, gives, group),
        "broadcast": lambda t: functional.broadcast(t, 1, group),
        "all_reduce_coalesced": lambda t: both(
            functional.all_reduce_coalesced([t, t * 2], "sum", group)
        ),
        "all_gather_into_tensor_coalesced": lambda t: both(
            functional.all_gather_into_tensor_coalesced([t, t * 2], group)
        ),
        "reduce_scatter_tensor_coalesced": lambda t: both(
            functional.reduce_scatter_tensor_coalesced([t, t * 2], "sum", [0, 0], group)
        ),
    }
    for name, call in calls.items():
        # Kernels before and after it.
        got, piece = run(lambda t, call=call: call(t * 2) + 1, x)
        close(got, call(x * 2) + 1)
        assert collectives(piece) == [name], collectives(piece)


@case
def one_that_nothing_reads_in_one_process():
    """The other one reads it, so both have to run it."""
    x, rank = torch.ones(4), dist.get_rank()

    def f(t):
        total = functional.all_reduce(t + rank, "sum", dist.group.WORLD)
        gathered = functional.all_gather_tensor(t * rank, 0, dist.group.WORLD)
        return total if rank == 0 else gathered

    got, piece = run(f, x)
    close(got, mine(torch.full((4,), 3.0), torch.arange(2.0).repeat_interleave(4)))
    assert collectives(piece) == ["all_reduce", "all_gather_into_tensor"]


@case
def several_that_do_not_depend_on_each_other():
    """Shapes differ between processes, and so do plans; the order must not."""
    rows = mine(64, 1)
    x = torch.randn(rows, 8)

    def f(t):
        a = functional.all_reduce(torch.softmax(t @ t.T, -1).sum(), "sum", dist.group.WORLD)
        b = functional.all_gather_tensor(t.sum(0), 0, dist.group.WORLD)
        c = functional.all_reduce(t.amax(), "max", dist.group.WORLD)
        d = functional.all_reduce(t.sum(0), "sum", dist.group.WORLD)
        return d.sum() + c, a - c, b * 2, d

    want = f(x)
    got, piece = run(f, x)
    for a, b in zip(got, want, strict=True):
        close(a, b)
    assert collectives(piece) == [
        "all_reduce",
        "all_gather_into_tensor",
        "all_reduce",
        "all_reduce",
    ]


@case
def equal_ones_are_not_merged():
    def f(t):
        a = functional.all_reduce(t, "sum", dist.group.WORLD)
        return a + functional.all_reduce(t, "sum", dist.group.WORLD)

    x = torch.ones(4)
    got, piece = run(f, x)
    close(got, torch.full((4,), 4.0))
    assert collectives(piece) == ["all_reduce", "all_reduce"]


@case
def uneven_shards():
    model, x = MLP(), torch.randn(5, 16)
    want = model(x)
    places = [Shard(0)]
    weights = [distribute_tensor(p, mesh(), [Replicate()]) for p in model.parameters()]

    def f(t):
        up, up_bias, down, down_bias = weights
        h = gelu(t @ up.T + up_bias)
        return (h @ down.T + down_bias).redistribute(placements=[Replicate()]).to_local()

    rows = distribute_tensor(x, mesh(), places)
    assert rows.to_local().shape[0] == mine(3, 2)
    got, _ = run(f, rows)
    close(got, want)


@case
def shards_without_elements():
    x = torch.arange(4.0).reshape(2, 2) + 10 * dist.get_rank()
    # All rows go to process 0.
    gives, takes = [2, 0], mine([2, 2], [0, 0])

    def f(t):
        return functional.all_to_all_single(t * 2, takes, gives, dist.group.WORLD) + 1

    got, _ = run(f, x)
    close(got, f(x))
    assert got.shape[0] == mine(4, 0)


@case
def constants():
    def f(t):
        return t + functional.all_reduce(torch.ones(()), "sum", dist.group.WORLD)

    got, _ = run(f, torch.ones(3))
    close(got, torch.full((3,), 3.0))


@case
def collectives_that_write():
    """Those of `torch.distributed` itself, which dynamo replaces by functional ones."""

    def f(t):
        total, gathered = t + 1, torch.empty(8)
        dist.all_reduce(total)
        dist.all_gather_into_tensor(gathered, t)
        return total * 2, gathered

    x = torch.full((4,), float(dist.get_rank()))
    entry = torch.compile(f, backend="kiln", fullgraph=True)
    total, gathered = entry(x)
    close(total, torch.full((4,), 6.0))
    close(gathered, torch.arange(2.0).repeat_interleave(4))


@case
def around_what_kiln_refuses():
    """Collectives keep their order from piece to piece."""

    def f(t):
        a = functional.all_reduce(t * 2, "sum", dist.group.WORLD)
        b = torch.fft.fft(a).real.contiguous()
        c = functional.all_reduce(t, "max", dist.group.WORLD)
        return b * c, functional.all_gather_tensor(b, 0, dist.group.WORLD)

    x = torch.arange(4.0) + dist.get_rank()
    with pieces.collecting() as found:
        got = torch.compile(f, backend="kiln", fullgraph=True)(x)
    for a, b in zip(got, f(x), strict=True):
        close(a, b)
    assert [piece.state for piece in found] == ["compiled", "eager", "compiled"]


@case
def bench_does_not_wait_for_ever():
    class Total(nn.Module):
        def forward(self, t):
            return functional.all_reduce(t + 1, "sum", dist.group.WORLD) * 2

    compiled = kiln.compile(Total().eval(), (torch.ones(3),))
    close(compiled(torch.ones(3)), torch.full((3,), 8.0))
    try:
        compiled.bench(against=("eager",), repetitions=3)
    except kiln.UsageError as e:
        assert "waits for the others in _c10d_functional::all_reduce" in str(e), e
    else:
        raise AssertionError("each process made its own number of calls")


@case
def a_subgroup():
    groups = [dist.new_group([r]) for r in range(2)]
    group = groups[dist.get_rank()]
    got, _ = run(lambda t: functional.all_reduce(t, "sum", group) * 2, torch.ones(3))
    close(got, torch.full((3,), 2.0))


@case
def errors_are_those_of_torch():
    """Process 1 stays away: process 0 gives up, once, with the exception of eager."""
    patience = datetime.timedelta(seconds=4)
    group = dist.new_group([0, 1], timeout=patience, group_desc="impatient")

    def f(t):
        return functional.all_reduce(t * 2, "sum", group) + 1

    entry, x = compiled(f), torch.ones(3)
    close(entry(x), torch.full((3,), 5.0))
    if dist.get_rank() == 0:
        start = time.monotonic()
        try:
            entry(x)
        except RuntimeError as e:
            assert type(e).__module__.startswith(("torch", "builtins")), type(e)
            assert "Kiln" not in str(e) and "kernel" not in str(e), e
            assert any(w in str(e) for w in ("imed out", "onnection", "imeout")), e
        else:
            raise AssertionError("nobody answered, yet it ended")
        assert time.monotonic() - start < 1.9 * patience.total_seconds()
    dist.barrier()


@case
def a_group_that_is_gone():
    group = dist.new_group([0, 1])
    entry, x = compiled(lambda t: functional.all_reduce(t * 2, "sum", group) + 1), torch.ones(3)
    entry(x)
    dist.barrier()
    dist.destroy_process_group(group)
    try:
        entry(x)
    except (RuntimeError, ValueError) as e:
        assert "group" in str(e), e
    else:
        raise AssertionError("the group is gone, yet it was found")


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    told = {}
    wanted = sys.argv[2:] or CASES
    for name in wanted:
        torch._dynamo.reset()
        torch.manual_seed(0)
        try:
            with torch.no_grad():
                CASES[name]()
            told[name] = ""
        except Exception:
            told[name] = traceback.format_exc()
    Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
