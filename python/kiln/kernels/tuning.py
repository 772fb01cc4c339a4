"""Kernels with several configurations, and parameters that are computed from others."""

from __future__ import annotations

import time
from typing import Any, Callable

from kiln.kernels.errors import KernelError, KernelUnsupported, OutOfResources


class Config:
    """Values of constant parameters and options of the launch."""

    def __init__(
        self,
        kwargs: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Callable[[dict[str, Any]], None] | None = None,
        **options: Any,
    ) -> None:
        self.kwargs = kwargs
        self.num_warps = num_warps
        self.num_stages = num_stages
        self.num_ctas = num_ctas
        self.maxnreg = maxnreg
        self.pre_hook = pre_hook
        self.options = options

    def all_kwargs(self) -> dict[str, Any]:
        """Everything that a launch of it passes by name."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages, "num_ctas": self.num_ctas}
        if self.maxnreg is not None:
            options["maxnreg"] = self.maxnreg
        return {**self.kwargs, **options}

    def __repr__(self) -> str:
        return ", ".join(f"{k}: {v}" for k, v in self.all_kwargs().items())


class Wrapped:
    """A kernel around another one, which launches it with more arguments."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.fn = inner
        self.arg_names = inner.arg_names
        self.__name__ = inner.__name__

    @property
    def base_fn(self) -> Any:
        return self.inner.base_fn if isinstance(self.inner, Wrapped) else self.inner

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            return self.run(*args, grid=grid, **kwargs)

        return launch

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Compiles the kernel for these arguments."""
        from kiln.kernels.mock import mocked

        return self.run(*(mocked(a) for a in args), grid=grid, warmup=True, **kwargs)


class Heuristics(Wrapped):
    """A kernel some of whose parameters are functions of the others."""

    def __init__(self, inner: Any, values: dict[str, Callable[[dict[str, Any]], Any]]) -> None:
        super().__init__(inner)
        self.values = values

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        for name, value in self.values.items():
            kwargs[name] = value({**dict(zip(self.arg_names, args, strict=False)), **kwargs})
        return self.inner.run(*args, grid=grid, warmup=warmup, **kwargs)


class Autotuner(Wrapped):
    """A kernel with several configurations, of which the fastest is measured for each key."""

    def __init__(self, inner: Any, configs: list[Config], key: list[str], **options: Any) -> None:
        super().__init__(inner)
        self.configs = configs or [Config({})]
        self.key = key
        self.reset_to_zero = options.get("reset_to_zero") or []
        self.restore_value = options.get("restore_value") or []
        self.pre_hook = options.get("pre_hook")
        self.post_hook = options.get("post_hook")
        self.prune = options.get("prune_configs_by") or {}
        self.cache: dict[Any, Config] = {}
        self.best_config: Config | None = None
        self.configs_timings: dict[Config, float] = {}

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        config = self.configs[0]
        if len(self.configs) > 1 and not warmup:
            dtypes = [str(v.dtype) for v in named.values() if hasattr(v, "dtype")]
            key = (*(named.get(name) for name in self.key), *dtypes)
            if key not in self.cache:
                self.cache[key] = self._fastest(args, grid, kwargs, named)
            config = self.cache[key]
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**named, **config.all_kwargs()})
        return self.inner.run(*args, grid=grid, warmup=warmup, **kwargs, **config.all_kwargs())

    def _fastest(self, args: Any, grid: Any, kwargs: Any, named: dict[str, Any]) -> Config:
        configs = _distinct(self._pruned(kwargs, named), named)
        if len(configs) == 1:
            return configs[0]
        times: dict[Config, float] = {}
        failed: list[Exception] = []
        for config in configs:
            try:
                times[config] = self._time(config, args, grid, kwargs, named)
            except (OutOfResources, KernelUnsupported, KernelError) as e:
                failed.append(e)
        if not times:
            raise failed[0]
        self.configs_timings = times
        fastest = min(times, key=lambda config: times[config])
        self._before({**named, **fastest.all_kwargs()}, reset_only=True)
        return fastest

    def _pruned(self, kwargs: dict[str, Any], named: dict[str, Any]) -> list[Config]:
        configs = list(self.configs)
        early = self.prune.get("early_config_prune")
        if early is not None:
            configs = list(early(configs, named, **kwargs))
        model = self.prune.get("perf_model")
        if model is not None:
            top = self.prune.get("top_k", 1.0)
            count = max(1, int(len(configs) * top)) if isinstance(top, float) else top
            configs.sort(key=lambda config: model(**{**named, **config.all_kwargs()}))
            configs = configs[:count]
        if not configs:
            raise ValueError(
                f"the pruning of {self.__name__} leaves no configuration; return one from "
                "early_config_prune"
            )
        return configs

    def _before(self, meta: dict[str, Any], *, reset_only: bool = False) -> None:
        """Puts tensors into the state that a measured run starts from, or the run after it."""
        for name in self.reset_to_zero:
            if meta[name] is not None:
                meta[name].zero_()
        if self.pre_hook is not None:
            self.pre_hook(meta, **({"reset_only": True} if reset_only else {}))

    def _time(
        self, config: Config, args: Any, grid: Any, kwargs: Any, named: dict[str, Any]
    ) -> float:
        meta = {**named, **config.all_kwargs()}
        kept = {name: named[name].clone() for name in self.restore_value if named[name] is not None}

        def once() -> None:
            if config.pre_hook is not None:
                config.pre_hook(meta)
            self._before(meta)
            self.inner.run(*args, grid=grid, **kwargs, **config.all_kwargs())
            if self.post_hook is not None:
                self.post_hook(meta, exception=None)
            for name, value in kept.items():
                named[name].copy_(value)

        try:
            once()
            found = []
            for _ in range(5):
                _synchronize(named)
                start = time.perf_counter()
                once()
                _synchronize(named)
                found.append(time.perf_counter() - start)
        finally:
            for name, value in kept.items():
                named[name].copy_(value)
        return sorted(found)[len(found) // 2]


def _distinct(configs: list[Config], named: dict[str, Any]) -> list[Config]:
    """The configurations with different code: stages are the compiler's own choice, and processors
    have no warps."""
    on_gpu = _on_gpu(named)
    found: dict[Any, Config] = {}
    for config in configs:
        constants = tuple(sorted((name, repr(value)) for name, value in config.kwargs.items()))
        found.setdefault((constants, config.num_warps if on_gpu else 0, config.pre_hook), config)
    return list(found.values())


def _on_gpu(named: dict[str, Any]) -> bool:
    return any(getattr(getattr(v, "device", None), "type", "") == "cuda" for v in named.values())


def _synchronize(named: dict[str, Any]) -> None:
    """Waits for a GPU, if the arguments are on one."""
    if _on_gpu(named):
        import torch

        torch.cuda.synchronize()


def autotune(configs: list[Config], key: list[str], **options: Any) -> Callable[[Any], Autotuner]:
    """Chooses the fastest of some configurations for each combination of values of `key`."""

    def decorate(kernel: Any) -> Autotuner:
        return Autotuner(kernel, configs, key, **options)

    return decorate


def heuristics(values: dict[str, Callable[[dict[str, Any]], Any]]) -> Callable[[Any], Heuristics]:
    """Computes constant parameters from the arguments of a launch."""

    def decorate(kernel: Any) -> Heuristics:
        return Heuristics(kernel, values)

    return decorate
