"""Triton's classes as far as torch and models see them, without its compiler.

A test that needs them calls `install`: kernels that it then decorates are Triton's for torch and
for Kiln, and cannot run by themselves.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

import pytest

import kiln.language


class KernelInterface:
    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        raise RuntimeError("0 active drivers ([]). There should only be one.")


class Parameter:
    def __init__(self, num: int, parameter: inspect.Parameter) -> None:
        self.num, self.name = num, parameter.name
        self.is_constexpr = "constexpr" in str(parameter.annotation)


class JITFunction(KernelInterface):
    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.__name__ = fn.__name__
        parameters = inspect.signature(fn).parameters.values()
        self.params = [Parameter(i, p) for i, p in enumerate(parameters)]
        self.arg_names = [p.name for p in self.params]


class Config:
    def __init__(self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages
        self.num_ctas, self.maxnreg, self.pre_hook = 1, None, None

    def all_kwargs(self) -> dict[str, Any]:
        return {**self.kwargs, "num_warps": self.num_warps, "num_stages": self.num_stages}


class Autotuner(KernelInterface):
    def __init__(
        self, fn: Any, arg_names: Any, configs: Any, key: Any, prune_configs_by: Any = None
    ) -> None:
        self.fn, self.arg_names, self.configs, self.keys = fn, arg_names, configs, key
        self.perf_model = self.early_config_prune = None
        self.configs_top_k = 1.0


class Heuristics(KernelInterface):
    def __init__(self, fn: Any, arg_names: Any, values: Any) -> None:
        self.fn, self.arg_names, self.values = fn, arg_names, values

    def run(self, *args: Any, **kwargs: Any) -> Any:
        for name, value in self.values.items():
            kwargs[name] = value({**dict(zip(self.arg_names, args, strict=False)), **kwargs})
        return self.fn.run(*args, **kwargs)


def jit(fn: Any) -> JITFunction:
    return JITFunction(fn)


def autotune(configs: Any, key: Any, prune_configs_by: Any = None) -> Any:
    return lambda fn: Autotuner(fn, fn.arg_names, configs, key, prune_configs_by)


def heuristics(values: Any) -> Any:
    return lambda fn: Heuristics(fn, fn.arg_names, values)


def install(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module `triton`, for the time of a test."""
    parts = {
        "triton.runtime.jit": (KernelInterface, JITFunction),
        "triton.runtime.autotuner": (Autotuner, Config, Heuristics, autotune),
        "triton": (JITFunction, Autotuner, Config, jit, autotune, heuristics),
        "triton.runtime": (),
    }
    modules = {name: types.ModuleType(name) for name in parts}
    for name, contents in parts.items():
        monkeypatch.setitem(sys.modules, name, modules[name])
        for value in contents:
            setattr(modules[name], value.__name__, value)
    for kind in (JITFunction, KernelInterface):
        kind.__module__ = "triton.runtime.jit"
    for kind in (Autotuner, Config, Heuristics):
        kind.__module__ = "triton.runtime.autotuner"
    triton = modules["triton"]
    triton.runtime, triton.language = modules["triton.runtime"], kiln.language
    triton.runtime.jit = modules["triton.runtime.jit"]
    triton.__version__ = "3.7.0"
    return triton
