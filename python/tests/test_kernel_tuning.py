"""Configurations and heuristics around kernels, and those of Triton's decorators."""

from __future__ import annotations

import pytest
import torch

import kiln
import kiln.language as kl
from kiln.kernels import Autotuner, Config, autotune, heuristics, port

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
    assert (x == 2).all() and runs.item() > 4
    assert calls[-1] and not any(calls[:-1])


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
