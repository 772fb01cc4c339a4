"""Kernels with several configurations, and parameters that are computed from others."""

from __future__ import annotations

import time
from typing import Any, Callable

import torch
from torch.compiler import is_dynamo_compiling

from kiln.kernels import in_dynamo
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
        self.fn = inner
        self.arg_names = inner.arg_names
        self.defaults = inner.defaults
        self.__name__ = inner.__name__
        #: By which a graph of dynamo names it.
        self.number = in_dynamo.register(self)

    @property
    def base_fn(self) -> Any:
        """The kernel inside."""
        return self.fn.base_fn if isinstance(self.fn, Wrapped) else self.fn

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        if is_dynamo_compiling():
            return in_dynamo.launcher(self, grid)
        if torch._C._len_torch_dispatch_stack():
            from kiln.kernels import traced

            return traced.launcher(self, grid)

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
        return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs)


class Autotuner(Wrapped):
    """A kernel with several configurations, of which the fastest is measured for each key. Parameters
    and attributes have Triton's names, so that ports' subclasses work."""

    def __init__(
        self,
        fn: Any,
        arg_names: list[str],
        configs: list[Config] | None,
        key: list[str],
        reset_to_zero: list[str] | None = None,
        restore_value: list[str] | None = None,
        pre_hook: Callable[..., Any] | None = None,
        post_hook: Callable[..., Any] | None = None,
        prune_configs_by: dict[str, Any] | None = None,
        warmup: int | None = None,
        rep: int | None = None,
        use_cuda_graph: bool = False,
        do_bench: Callable[..., Any] | None = None,
        cache_results: bool = False,
    ) -> None:
        super().__init__(fn)
        self.arg_names = arg_names
        self.configs = configs or [Config({})]
        self.keys = key
        self.reset_to_zero = list(reset_to_zero or [])
        self.restore_value = list(restore_value or [])
        self.restore_copies: dict[str, Any] = {}
        self.user_defined_pre_hook = pre_hook is not None
        self.user_defined_post_hook = post_hook is not None
        # A hook of the user is in place of those that reset and restore.
        self.pre_hook = pre_hook if pre_hook is not None else self._reset_and_keep
        self.post_hook = post_hook if post_hook is not None else self._restore
        pruned_by = prune_configs_by or {}
        self.early_config_prune = pruned_by.get("early_config_prune")
        self.perf_model = pruned_by.get("perf_model")
        self.configs_top_k = pruned_by.get("top_k", 1.0)
        #: What measures a function instead of Kiln's clock: as `triton.testing.do_bench`.
        self.do_bench = do_bench
        self.cache_results = cache_results
        #: The arguments of the launch in flight that were given by place.
        self.nargs: dict[str, Any] | None = None
        self.cache: dict[Any, Config] = {}
        self.best_config: Config | None = None
        #: Median, fifth and four fifths of the times in milliseconds, by configuration.
        self.configs_timings: dict[Config, list[float]] = {}
        self.bench_time = 0.0

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        config = self.configs[0]
        if len(self.configs) > 1 and not warmup:
            config = self._tuned(args, {**kwargs, "grid": grid})
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
        launched = self.fn.run(*args, grid=grid, warmup=warmup, **kwargs, **config.all_kwargs())
        self.nargs = None
        return launched

    def _tuned(self, args: Any, kwargs: dict[str, Any]) -> Config:
        """The fastest configuration for the values of the key and the tensors' types."""
        assert self.nargs is not None
        named = {name: v for name, v in {**self.nargs, **kwargs}.items() if name in self.arg_names}
        dtypes = [str(v.dtype) for v in named.values() if hasattr(v, "dtype")]
        key = (*(named[name] for name in self.keys if name in named), *dtypes)
        if key not in self.cache:
            start = time.perf_counter()
            self.cache[key] = self._fastest(args, kwargs, named)
            self.bench_time = time.perf_counter() - start
        return self.cache[key]

    def _fastest(self, args: Any, kwargs: dict[str, Any], named: dict[str, Any]) -> Config:
        launch = {name: value for name, value in kwargs.items() if name != "grid"}
        configs = _distinct(self.prune_configs(launch), named)
        if len(configs) == 1:
            return configs[0]
        times: dict[Config, list[float]] = {}
        failed: list[Exception] = []
        for config in configs:
            try:
                times[config] = self._measured(config, args, kwargs)
            except (OutOfResources, KernelUnsupported, KernelError) as e:
                failed.append(e)
        if not times:
            raise failed[0]
        self.configs_timings = times
        fastest = min(times, key=lambda config: times[config])
        self.pre_hook({**(self.nargs or {}), **kwargs, **fastest.all_kwargs()}, reset_only=True)
        return fastest

    def measured(self, named: dict[str, Any]) -> Config | None:
        """The configuration that was measured for a launch with these arguments, if one was."""
        dtypes = [str(v.dtype) for name, v in named.items() if name in self.arg_names and hasattr(v, "dtype")]
        values = [named[name] for name in self.keys if name in named]
        if not all(isinstance(v, (int, float, str, bool, type(None))) for v in values):
            return None
        return self.cache.get((*values, *dtypes))

    def kept(self, named: dict[str, Any]) -> list[Config]:
        """The configurations that pruning leaves for a launch that is traced, in its order."""
        if self.early_config_prune is None and self.perf_model is None:
            return list(self.configs)
        before = self.nargs
        self.nargs = {name: value for name, value in named.items() if name in self.arg_names}
        try:
            return self.prune_configs({})
        finally:
            self.nargs = before

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Config]:
        """The configurations that are worth measuring for a launch with these arguments by name."""
        named = {**(self.nargs or {}), **kwargs}
        configs = list(self.configs)
        if self.early_config_prune is not None:
            configs = list(self.early_config_prune(configs, named, **kwargs))
        if self.perf_model is not None:
            top, model = self.configs_top_k, self.perf_model
            count = max(1, int(len(configs) * top)) if isinstance(top, float) else top
            configs.sort(key=lambda config: model(**{**named, **config.all_kwargs()}))
            configs = configs[:count]
        if not configs:
            raise ValueError(
                f"the pruning of {self.__name__} leaves no configuration; return one from "
                "early_config_prune"
            )
        return configs

    def _reset_and_keep(self, named: dict[str, Any], reset_only: bool = False) -> None:
        """Puts tensors into the state that a measured run starts from, or the run after it."""
        for name in self.reset_to_zero:
            if named[name] is not None:
                named[name].zero_()
        if not reset_only:
            kept = (name for name in self.restore_value if named[name] is not None)
            self.restore_copies = {name: named[name].clone() for name in kept}

    def _restore(self, named: dict[str, Any], exception: Exception | None) -> None:
        for name, value in self.restore_copies.items():
            named[name].copy_(value)
        self.restore_copies = {}

    def _bench(self, *args: Any, config: Config, **kwargs: Any) -> list[float]:
        """Times of a configuration; infinite where it cannot run."""
        try:
            return self._measured(config, args, kwargs)
        except (OutOfResources, KernelUnsupported, KernelError):
            return [float("inf")] * 3

    def _measured(self, config: Config, args: Any, kwargs: dict[str, Any]) -> list[float]:
        twice = kwargs.keys() & config.kwargs.keys()
        if twice:
            raise ValueError(
                f"{', '.join(sorted(twice))} of {self.__name__} is given by the launch and by its "
                "configurations; leave it out of the launch"
            )
        current = {**kwargs, **config.all_kwargs()}
        named = {**(self.nargs or {}), **current}

        def once() -> None:
            if config.pre_hook is not None:
                config.pre_hook(named)
            self.pre_hook(named)
            try:
                self.fn.run(*args, **current)
            except Exception as e:
                self.post_hook(named, exception=e)
                raise
            self.post_hook(named, exception=None)

        if self.do_bench is not None:
            return list(self.do_bench(once, quantiles=(0.5, 0.2, 0.8)))
        return _timed(once, named)


def _timed(once: Callable[[], None], named: dict[str, Any]) -> list[float]:
    """Median, fifth and four fifths of the milliseconds of some runs, after one to get ready."""
    once()
    found = []
    for _ in range(5):
        _synchronize(named)
        start = time.perf_counter()
        once()
        _synchronize(named)
        found.append(1e3 * (time.perf_counter() - start))
    found.sort()
    return [found[2], found[1], found[3]]


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
        return Autotuner(kernel, kernel.arg_names, configs, key, **options)

    return decorate


def heuristics(values: dict[str, Callable[[dict[str, Any]], Any]]) -> Callable[[Any], Heuristics]:
    """Computes constant parameters from the arguments of a launch."""

    def decorate(kernel: Any) -> Heuristics:
        return Heuristics(kernel, values)

    return decorate
