"""Configurations and heuristics around kernels, and those of Triton's decorators."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

import kiln
import kiln.language as kl
from kiln.kernels import Autotuner, Config, KernelError, autotune, heuristics, port
from kiln.kernels.keys import KeyPart

pytestmark = pytest.mark.native


@kiln.kernel
def count(x, runs, n, BLOCK: kl.constexpr, ADD: kl.constexpr = 1):
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    kl.store(x + i, kl.load(x + i, mask=i < n) + ADD, mask=i < n)
    kl.atomic_add(runs, 1)


def tensors():
    return torch.zeros(64), torch.zeros(1, dtype=torch.int32)


def grid(meta):
    return (kiln.kernels.cdiv(64, meta["BLOCK"]),)


def test_what_is_set_to_zero_is_so_before_the_run_that_counts():
    x, runs = tensors()
    tuned = autotune([Config({"BLOCK": 16}), Config({"BLOCK": 32})], ["n"], reset_to_zero=["x", "runs"])(count)
    tuned[grid](x, runs, 64)
    assert (x == 1).all() and runs.item() in (2, 4)
    # The key is known: nothing is measured, and nothing set to zero.
    tuned[grid](x, runs, 64)
    assert (x == 2).all()


def test_what_is_restored_is_as_it_was_before_the_run_that_counts():
    x, runs = torch.full((64,), 5.0), torch.zeros(1, dtype=torch.int32)
    tuned = autotune([Config({"BLOCK": 16}), Config({"BLOCK": 32})], ["n"], restore_value=["x"])(count)
    tuned[grid](x, runs, 64)
    assert (x == 6).all()


def test_configurations_with_the_same_code_are_not_measured():
    x, runs = tensors()
    configs = [Config({"BLOCK": 64}, num_warps=w, num_stages=s) for w in (1, 4, 8) for s in (1, 3)]
    autotune(configs, ["n"])(count)[grid](x, runs, 64)
    assert (x == 1).all() and runs.item() == 1


def test_configurations_are_pruned():
    x, runs = tensors()
    seen = []

    def early(configs, named, **kwargs):
        seen.append((sorted(named), kwargs))
        return [config for config in configs if config.kwargs["BLOCK"] < 64]

    def model(BLOCK, n, **_):  # noqa: N803
        return n / BLOCK

    configs = [Config({"BLOCK": block}) for block in (8, 16, 32, 64)]
    prune = {"early_config_prune": early, "perf_model": model, "top_k": 1}
    tuned = autotune(configs, ["n"], prune_configs_by=prune)(count)
    tuned[grid](x, runs, n=64)
    assert tuned.best_config.kwargs == {"BLOCK": 32} and runs.item() == 2
    assert seen == [(["n", "runs", "x"], {"n": 64})]
    none = autotune(configs, ["n"], prune_configs_by={"early_config_prune": lambda configs, named, **_: []})(count)
    with pytest.raises(ValueError, match="leaves no configuration"):
        none[grid](x, runs, 64)


class Decorated:
    """What a decorator of Triton's gives."""

    def __init__(self, fn, **members):
        self.fn = fn
        self.__dict__.update(members)


def tuned_as_triton_does(**options):
    jit = Decorated(count.fn, do_not_specialize=["n"])
    block = Decorated(jit, values={"ADD": lambda named: named["n"] // 32})
    found = {"reset_to_zero": ["x", "runs"], "restore_value": [], "user_defined_pre_hook": False, **options}
    return Decorated(block, configs=[Config({"BLOCK": 16}), Config({"BLOCK": 32})], keys=["n"], **found)


def test_kernels_of_triton_keep_their_configurations_and_heuristics():
    x, runs = tensors()
    tuned = tuned_as_triton_does()
    ported = port(tuned)
    ported[grid](x, runs, 64)
    assert (x == 2).all() and runs.item() in (2, 4)
    assert tuned.best_config is ported.best_config
    assert ported.best_config.kwargs["BLOCK"] in (16, 32)
    assert ported.base_fn.params[2].do_not_specialize


def test_a_hook_of_the_user_replaces_those_of_the_options():
    calls = []

    def hook(named, reset_only=False):
        calls.append(reset_only)
        named["x"].zero_()

    x, runs = tensors()
    ported = port(tuned_as_triton_does(user_defined_pre_hook=True, pre_hook=hook))
    ported[grid](x, runs, 64)
    assert (x == 2).all() and runs.item() in (2, 4)
    assert calls[-1] and not any(calls[:-1]) and len(calls) > 4


def test_a_kernel_is_ported_once():
    known = tuned_as_triton_does()
    assert port(known) is port(known)
    kernel = heuristics({"ADD": lambda named: 1})(count)
    assert port(kernel) is kernel and port(count) is count


class Measured(Autotuner):
    """A subclass as collections write them: Triton's parameters, a run of its own, hooks that are asked for."""

    def __init__(self, fn, arg_names, configs, key, reset_to_zero, restore_value, **kwargs):
        super().__init__(fn, arg_names, configs, key, reset_to_zero, restore_value, **kwargs)
        self.runs = []

    def run(self, *args, **kwargs):
        launched = super().run(*args, **kwargs)
        self.runs.append(self.best_config)
        return launched


def test_ports_subclass_the_autotuner():
    x, runs = tensors()
    measured = []

    def bench(call, quantiles):
        call()
        measured.append(quantiles)
        return [float(len(measured))] * len(quantiles)

    configs = [Config({"BLOCK": block}) for block in (16, 32, 64)]
    tuned = Measured(
        count, count.arg_names, configs, ["n"], ["runs"], ["x"],
        pre_hook=None, post_hook=None, prune_configs_by=None, warmup=None, rep=None,
        use_cuda_graph=False, do_bench=bench, cache_results=False,
    )  # fmt: skip
    assert not tuned.user_defined_pre_hook and not tuned.user_defined_post_hook
    tuned[grid](x, runs, 64)
    assert measured == [(0.5, 0.2, 0.8)] * 3
    assert tuned.runs == [configs[0]] and list(tuned.cache.values()) == [configs[0]]
    assert list(tuned.cache) == [(64, "torch.float32", "torch.int32")]
    assert (x == 1).all() and runs.item() == 4
    assert tuned.nargs is None and tuned.keys == ["n"]
    assert isinstance(tuned.base_fn.cache_key, str)
    with pytest.raises(ValueError, match="BLOCK of count is given by the launch and by its configurations"):
        tuned[grid](x, runs, 63, BLOCK=16)


def clock(*milliseconds):
    """A clock that runs a function once, and gives these times in turn."""
    left = list(milliseconds)

    def bench(call, quantiles):
        call()
        return [left.pop(0)] * len(quantiles)

    return bench


BLOCKS = [Config({"BLOCK": block}) for block in (16, 32, 64)]


def priced_order(configs, x, runs):
    """The configurations as they are measured: the cheapest by Kiln's price first."""
    us = {c: count.quote(x, runs, 64, grid=grid, **c.all_kwargs()).us for c in configs}
    return sorted(configs, key=us.__getitem__)


def test_what_a_run_changes_is_restored_by_itself():
    x, runs = torch.full((64,), 5.0), torch.full((1,), 7, dtype=torch.int32)
    tuned = autotune(BLOCKS, ["n"])(count)
    tuned[grid](x, runs, 64)
    assert (x == 6).all()
    assert runs.item() == 7 + 64 // tuned.best_config.kwargs["BLOCK"]
    assert len(tuned.configs_timings) == 3 and not tuned.failures


def test_tensors_that_are_only_written_are_not_copied(monkeypatch):
    @kiln.kernel
    def double(x, out, n, BLOCK: kl.constexpr):
        i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
        kl.store(out + i, kl.load(x + i, mask=i < n) * 2, mask=i < n)

    assert double.quote(torch.ones(64), torch.ones(64), 64, grid=(1,), BLOCK=64).written == [1]
    assert double.quote(torch.ones(64), torch.ones(64), 64, grid=(1,), BLOCK=64).changed == []
    quote = count.quote(*tensors(), 64, grid=grid, BLOCK=16)
    assert quote.written == [0, 1] == quote.changed


def test_the_fastest_runs_and_a_launch_says_so():
    x, runs = tensors()
    tuned = autotune(BLOCKS, ["n"], do_bench=clock(2.0, 1.0, 3.0))(count)
    launched = tuned[grid](x, runs, 64)
    assert tuned.best_config is BLOCKS[1]
    assert [(c, times[0]) for c, times in tuned.configs_timings.items()] == [*zip(BLOCKS, (2.0, 1.0, 3.0), strict=True)]
    assert launched.facts["configuration"] == f"{BLOCKS[1]} (measured, 1000 us)"
    assert f"configuration      {BLOCKS[1]}" in str(launched.facts)
    assert "measured, 1000 us" in launched.html()


def test_measuring_later_starts_with_the_price_and_measures_one_a_launch():
    x, runs = tensors()
    order = priced_order(BLOCKS, x, runs)
    tuned = autotune(BLOCKS, ["n"], do_bench=clock(2.0, 3.0, 1.0), measure="later")(count)
    launched = tuned[grid](x, runs, 64)
    assert tuned.best_config is order[0] and not tuned.configs_timings
    assert launched.facts["configuration"].startswith(f"{order[0]} (by price, ")
    for launches, best in ((1, order[0]), (2, order[0]), (3, order[2]), (4, order[2])):
        tuned[grid](x, runs, 64)
        assert len(tuned.configs_timings) == min(launches, 3)
        assert tuned.best_config is best
    assert (x == 5).all(), "each launch counts once, whatever was measured"


def test_measuring_never_takes_the_cheapest():
    x, runs = tensors()
    tuned = autotune(BLOCKS, ["n"], do_bench=clock(), measure="never")(count)
    tuned[grid](x, runs, 64)
    tuned[grid](x, runs, 64)
    assert tuned.best_config is priced_order(BLOCKS, x, runs)[0]
    with pytest.raises(ValueError, match="measure is 'soon'; pass one of now, later, never"):
        autotune(BLOCKS, ["n"], measure="soon")(count)


def test_what_is_far_too_dear_is_not_measured():
    n = 1 << 16
    x, runs = torch.zeros(n), torch.zeros(1, dtype=torch.int32)
    configs = [Config({"BLOCK": 1 << b}) for b in range(12)]

    def whole(meta):
        return (kiln.kernels.cdiv(n, meta["BLOCK"]),)

    tuned = autotune(configs, ["n"], do_bench=clock(*range(1, 13)))(count)
    tuned[whole](x, runs, n)
    measured = {c.kwargs["BLOCK"] for c in tuned.configs_timings}
    assert 8 <= len(measured) < 12 and 1 not in measured
    everything = {"price_factor": None}
    tuned = autotune(configs, ["n"], do_bench=clock(*range(1, 13)), prune_configs_by=everything)(count)
    tuned[whole](x, runs, n)
    assert len(tuned.configs_timings) == 12


@kiln.kernel
def picky(x, n, BLOCK: kl.constexpr):
    kl.static_assert(BLOCK < 64, "BLOCK is below 64")
    i = kl.arange(0, BLOCK)
    kl.store(x + i, 1.0, mask=i < n)


def test_a_configuration_that_fails_says_why():
    x = torch.zeros(32)
    tuned = autotune(BLOCKS, ["n"])(picky)
    tuned[(1,)](x, 32)
    assert [(c.kwargs["BLOCK"], "BLOCK is below 64" in why) for c, why in tuned.failures.items()] == [(64, True)]
    none = autotune([Config({"BLOCK": 64}), Config({"BLOCK": 128})], ["n"])(picky)
    every = r"no configuration of picky runs; add one that does:\n  BLOCK: 64.*\n  BLOCK: 128"
    with pytest.raises(KernelError, match=every):
        none[(1,)](x, 32)


def test_keys_have_buckets():
    x, runs = tensors()
    tuned = autotune(BLOCKS, ["n // 48", "cdiv(n, 48)"], do_bench=clock(*range(1, 10)))(count)
    for n in (49, 64, 50, 20):
        tuned[grid](x, runs, n)
    assert [key[:2] for key in tuned.cache] == [(1, 2), (0, 1)]


@pytest.mark.parametrize(
    ("text", "value"),
    [("M//1024", 2), ("M % 7 - -1", 5), ("next_power_of_2(N)", 128), ("cdiv(M, 1000) * N", 300), ("max(M, N)", 2048)],
)
def test_keys_compute_with_integers(text, value):
    assert KeyPart(text, ["M", "N"]).value({"M": 2048, "N": 100}) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("M // L", "names `L`; the arguments are M, N"),
        ("M ** 2", "has another operator"),
        ("M / 2", "has another operator"),
        ("__import__('os')", "calls `__import__`"),
        ("M.bit_length()", "calls `M.bit_length`"),
        ("M // 1.5", "has 1.5"),
        ("[M]", r"has `\[M\]`"),
        ("M //", "is no expression"),
    ],
)
def test_keys_are_no_python(text, why):
    with pytest.raises(ValueError, match=f"in key {why}"):
        KeyPart(text, ["M", "N"])


def test_a_key_that_cannot_be_computed_shows_the_expression():
    with pytest.raises(ValueError, match="`M // N` in key divides by zero"):
        KeyPart("M // N", ["M", "N"]).value({"M": 1, "N": 0})
    with pytest.raises(ValueError, match="`M // N` in key computes with `N`, which is a float"):
        KeyPart("M // N", ["M", "N"]).value({"M": 1, "N": 0.5})
    with pytest.raises(ValueError, match="`M // N` in key names `N`, which the launch leaves out"):
        KeyPart("M // N", ["M", "N"]).value({"M": 1})


def test_what_is_chosen_is_printed(capsys, monkeypatch):
    monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "1")
    x = torch.zeros(32)
    autotune(BLOCKS, ["n"], do_bench=clock(1.0, 2.0))(picky)[(1,)](x, 32)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("picky(n=32): BLOCK: ") and lines[0].endswith("(measured, 1000 us)")
    assert "3 configurations: 2 measured, 1 failed" in lines[1]
    assert "the price's first choice reaches 0.50 of the best" in lines[2]
    assert lines[3].startswith("  BLOCK: 64")


def test_tuned_kernels_nest_with_heuristics():
    x, runs = tensors()
    inside = autotune(BLOCKS, ["n"])(heuristics({"ADD": lambda named: named["n"] // 32})(count))
    inside[grid](x, runs, 64)
    assert (x == 2).all() and len(inside.prices) == 3
    outside = heuristics({"ADD": lambda named: 3})(autotune(BLOCKS, ["n"])(count))
    outside[grid](x, runs, 64)
    assert (x == 5).all()


STORED = """
import json, sys, torch, kiln, kiln.language as kl
from kiln.kernels import Config, autotune
from kiln.kernels.tuning import Autotuner

measured = []
honest = Autotuner._measured
def counted(self, config, *args):
    measured.append(config.kwargs["BLOCK"])
    return honest(self, config, *args)
Autotuner._measured = counted

def helper(i):
    return i {op} 1.0
helper = kiln.kernel(helper)

@autotune([Config({{"BLOCK": block}}) for block in {blocks}], ["n"])
@kiln.kernel
def shift(x, n, BLOCK: kl.constexpr):
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    kl.store(x + i, helper(kl.load(x + i, mask=i < n)), mask=i < n)

x = torch.zeros(64)
shift[lambda meta: (kiln.kernels.cdiv(64, meta["BLOCK"]),)](x, 64)
print(json.dumps([measured, str(shift.best_config), float(x.sum())]))
"""


def run_stored(tmp_path, blocks, op="+"):
    file = tmp_path / "stored.py"
    file.write_text(STORED.format(blocks=blocks, op=op))
    environment = {**os.environ, "KILN_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_further_configuration_is_measured_alone(tmp_path):
    measured, _, total = run_stored(tmp_path, [16, 32])
    assert sorted(measured) == [16, 32] and total == 64
    measured, best, total = run_stored(tmp_path, [16, 32, 64])
    assert measured == [64] and total == 64
    assert run_stored(tmp_path, [16, 32, 64]) == [[], best, 64]
    # Another helper makes another kernel.
    measured, _, total = run_stored(tmp_path, [16, 32], op="-")
    assert sorted(measured) == [16, 32] and total == -64


def test_stored_times_are_those_of_the_launchs_constants():
    x, runs = tensors()
    tuned = autotune(BLOCKS, ["n"])(count)
    keys = [tuned._stored_key({"x": x, "runs": runs, "n": 64, **constants}, "64") for constants in ({}, {"ADD": 2})]
    assert [key.arguments for key in keys] == ["64", "64, ADD=2"]
    assert not keys[0].on_gpu and keys[0].digest == keys[1].digest == count.text_digest()


def test_what_is_pinned_runs(tmp_path):
    run_stored(tmp_path, [16, 32])
    [file] = (tmp_path / "cache" / "tunings").glob("*.json")
    store = json.loads(file.read_text())
    times = {row["configuration"]: row["measured"]["us"]["median"] for row in store["kernels"][0]["configurations"]}
    slowest = max(times, key=times.get)
    store["kernels"][0]["pinned"] = slowest
    file.write_text(json.dumps(store))
    assert run_stored(tmp_path, [16, 32, 64]) == [[], slowest, 64]


@kiln.kernel
def row_sums(x, out, stride, n, BLOCK: kl.constexpr):
    j = kl.arange(0, BLOCK)
    row = kl.program_id(0)
    kl.store(out + row, kl.sum(kl.load(x + row * stride + j, mask=j < n, other=0.0)))


def test_without_configurations_blocks_that_compute_the_same_are_proposed():
    x, out = torch.randn(8, 300), torch.full((9,), 4.0)
    tuned = autotune(key=["n"])(row_sums)
    tuned[(8,)](x, out, 300, 300)
    torch.testing.assert_close(out[:8], x.sum(1))
    assert out[8] == 4.0
    assert tuned.best_config.kwargs["BLOCK"] >= 300
    short = {c.kwargs["BLOCK"]: why for c, why in tuned.failures.items()}
    assert 256 in short and "blocks may have to cover rows" in short[256]


def test_what_only_compiles_is_not_tuned():
    tuned = autotune(key=["n"])(row_sums)
    launched = tuned.warmup(torch.float32, torch.float32, 300, 300, grid=(8,))
    assert tuned.best_config.kwargs["BLOCK"] == 512 and not tuned.configs_timings
    assert "not tuned" in launched.facts["configuration"]


def test_the_largest_blocks_decide_however_dear_they_are():
    x, out = torch.randn(2, 3000), torch.empty(2)
    tuned = autotune(key=[], prune_configs_by={"price_factor": 1.0})(row_sums)
    tuned[(2,)](x, out, 3000, 3000)
    torch.testing.assert_close(out, x.sum(1), rtol=1e-4, atol=1e-4)
    # The key has no sizes, but what is proposed depends on them.
    x, out = torch.randn(2, 5000), torch.empty(2)
    tuned[(2,)](x, out, 5000, 5000)
    torch.testing.assert_close(out, x.sum(1), rtol=1e-4, atol=1e-4)
    assert len(tuned.tunings) == 2


def test_proposed_blocks_of_any_size_are_measured():
    @kiln.kernel
    def halve(x, out, n, BLOCK: kl.constexpr):
        i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
        kl.store(out + i, kl.load(x + i, mask=i < n) / 2, mask=i < n)

    x, out = torch.randn(1000), torch.empty(1000)
    tuned = autotune(key=["n"])(halve)
    tuned[lambda meta: (kiln.kernels.cdiv(1000, meta["BLOCK"]),)](x, out, 1000)
    torch.testing.assert_close(out, x / 2)
    assert not tuned.failures and {c.kwargs["BLOCK"] for c in tuned.configs_timings} == {64, 128, 256, 512, 1024}


def test_constants_that_are_no_blocks_are_the_callers():
    @kiln.kernel
    def scaled(x, n, BLOCK: kl.constexpr, FACTOR: kl.constexpr):
        i = kl.arange(0, BLOCK)
        kl.store(x + i, kl.load(x + i, mask=i < n) * FACTOR, mask=i < n)

    x = torch.ones(64)
    tuned = autotune(key=["n"])(scaled)
    with pytest.raises(ValueError, match="`FACTOR` is no size of a block; pass it to the launch"):
        tuned[(1,)](x, 64)
    tuned[(1,)](x, 64, FACTOR=3)
    assert (x == 3).all()
