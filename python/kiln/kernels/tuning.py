"""Kernels with several configurations, of which the price and measurements choose one.

For each key the configurations are pruned by the user's functions, ordered and cut by Kiln's price, compiled in
parallel, and measured. Times are stored on disk, so that another process measures only configurations that are new.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Callable

from kiln._native import KilnError
from kiln.kernels.candidates import Proposal, Results
from kiln.kernels.config import Config
from kiln.kernels.errors import KernelError, KernelUnsupported, OutOfResources
from kiln.kernels.keys import KeyPart
from kiln.kernels.measuring import Effort, Hooks, Saved, device_of, is_capturing, measured, on_gpu, tensor_of
from kiln.kernels.quote import Quote, in_parallel
from kiln.kernels.stored import Outcome, Stored, StoredKey, store
from kiln.kernels.wrapped import Heuristics, Wrapped, heuristics

__all__ = ["Autotuner", "Config", "Heuristics", "Wrapped", "autotune", "heuristics"]

#: Configurations whose price is beyond this multiple of the least are not measured, but for so many.
_WORTH, _FEWEST = 3.0, 8
#: Most proposed configurations that are tried, in the order of their prices.
_MOST_PROPOSED = 16
#: Milliseconds of measuring: at once, and between launches.
_EFFORT, _BETWEEN_LAUNCHES = Effort(5, 40), Effort(2, 15)
_MODES = ("now", "later", "never")
#: What a configuration raises each time.
_LASTING = (KernelError, KernelUnsupported, OutOfResources)


@dataclass
class Tuning:
    """What is known of the configurations for one key."""

    #: The configuration that runs, and why.
    best: Config
    reason: str
    outcomes: dict[Config, Outcome] = field(default_factory=dict)
    quotes: dict[Config, Quote] = field(default_factory=dict)
    #: What is still to be measured, the cheapest first.
    waiting: list[Config] = field(default_factory=list)
    #: Where times are stored.
    key: StoredKey | None = None

    @property
    def times(self) -> dict[Config, list[float]]:
        return {config: found for config, found in self.outcomes.items() if isinstance(found, list)}

    @property
    def failures(self) -> dict[Config, str]:
        return {config: why for config, why in self.outcomes.items() if isinstance(why, str)}


@dataclass(frozen=True)
class Launch:
    """A launch of a tuned kernel: its arguments by place, those by name with the grid, and all by name."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    named: dict[str, Any]


class Autotuner(Wrapped):
    """A kernel with several configurations, of which the fastest runs for each key. Parameters and
    attributes have Triton's names, so that ports' subclasses work.

    `measure`: `now`, at the first launch with a key; `later`: the cheapest by price runs at once, and
    each further launch measures one; `never`: the price chooses."""

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
        cache_results: bool = True,
        measure: str = "now",
    ) -> None:
        super().__init__(fn)
        if measure not in _MODES:
            raise ValueError(f"measure is {measure!r}; pass one of {', '.join(_MODES)}")
        self.arg_names = arg_names
        self.proposal = Proposal(self.base_fn) if configs is None else None
        self.configs = configs or [Config({})]
        self.keys = key
        self._key_parts = [KeyPart(text, arg_names) for text in key]
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
        #: How much dearer than the cheapest a configuration may be by Kiln's price; None: all are measured.
        self.price_factor = pruned_by.get("price_factor", _WORTH)
        #: What measures a function instead of Kiln's clock: as `triton.testing.do_bench`.
        self.do_bench = do_bench
        self.cache_results = cache_results
        self.measure = measure
        self.effort = Effort(warmup or _EFFORT.warmup, rep or _EFFORT.rep)
        #: The arguments of the launch in flight that were given by place.
        self.nargs: dict[str, Any] | None = None
        self.cache: dict[Any, Config] = {}
        self.best_config: Config | None = None
        #: All that is known, by key.
        self.tunings: dict[Any, Tuning] = {}
        #: Of the key that was tuned last: median, fifth and four fifths of the times in milliseconds
        #: by configuration, why others failed, and the predicted microseconds.
        self.configs_timings: dict[Config, list[float]] = {}
        self.failures: dict[Config, str] = {}
        self.prices: dict[Config, float] = {}
        self.bench_time = 0.0

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        config, reason = self.configs[0], "the only configuration"
        if self._runs_untuned(warmup):
            config, reason = self._untuned(kwargs), "not tuned"
        elif len(self.configs) > 1 or self.proposal is not None:
            config, reason = self._tuned(args, {**kwargs, "grid": grid})
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**(self.nargs or {}), **kwargs, **config.all_kwargs()})
        launched = self.fn.run(*args, grid=grid, warmup=warmup, **kwargs, **config.all_kwargs())
        if hasattr(launched, "_note_configuration"):
            launched._note_configuration(f"{config} ({reason})")
        self.nargs = None
        return launched

    def quote(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """That of the first configuration: an outer kernel compares its own."""
        return self.fn.quote(*args, grid=grid, **kwargs, **self.configs[0].all_kwargs())

    def _runs_untuned(self, warmup: bool) -> bool:
        """Whether the launch measures nothing: it only compiles, or is interpreted with checks."""
        return warmup or bool(getattr(self.base_fn, "interpret", False))

    def _untuned(self, kwargs: dict[str, Any]) -> Config:
        """The first configuration, or the proposal with the largest blocks, which are right for sure."""
        if self.proposal is None:
            return self.configs[0]
        named = {name: v for name, v in {**(self.nargs or {}), **kwargs}.items() if name in self.arg_names}
        return max(self.proposal.configs(named), key=self.proposal.elements)

    def _tuned(self, args: Any, kwargs: dict[str, Any]) -> tuple[Config, str]:
        """The configuration for the values of the key and the tensors' types, and why it is that."""
        named = {n: v for n, v in {**(self.nargs or {}), **kwargs}.items() if n in self.arg_names}
        launch = Launch(args, kwargs, named)
        dtypes = [str(v.dtype) for v in named.values() if hasattr(v, "dtype")]
        values = [part.value(named) for part in self._key_parts if part.known(named)]
        bounds = self.proposal.bounds(named) if self.proposal is not None else []
        key = (*values, *bounds, *dtypes)
        tuning = self.tunings.get(key)
        if tuning is None:
            start = time.perf_counter()
            if self.proposal is None:
                self._check_names(kwargs)
            arguments = ", ".join(map(str, key))
            tuning = self._tune(launch, self._stored_key(named, arguments))
            self.tunings[key] = tuning
            self._finish(tuning, launch, time.perf_counter() - start)
        elif tuning.waiting and not is_capturing(named):
            self._measure(tuning, launch, [tuning.waiting.pop(0)], _BETWEEN_LAUNCHES)
            self._choose(tuning)
            self._finish(tuning, launch, 0.0)
        self.cache[key] = tuning.best
        return tuning.best, tuning.reason

    def _check_names(self, kwargs: dict[str, Any]) -> None:
        twice = {name for config in self.configs for name in kwargs.keys() & config.kwargs.keys()}
        if twice:
            raise ValueError(
                f"{', '.join(sorted(twice))} of {self.__name__} is given by the launch and by its "
                "configurations; leave it out of the launch"
            )

    def _stored_key(self, named: dict[str, Any], arguments: str) -> StoredKey | None:
        if not self.cache_results or self.do_bench is not None:
            return None
        # Constants of the launch make other programs, though the key may not have them.
        constants = {p.name: named[p.name] for p in self.base_fn.params if p.is_constexpr and p.name in named}
        plain = (f"{n}={v!r}" for n, v in constants.items() if isinstance(v, (int, float, str, type(None))))
        text = ", ".join([arguments, *plain]) if arguments else ", ".join(plain)
        device = device_of(named)
        return StoredKey(self.__name__, self._digest, text, device is not None, device or 0)

    @cached_property
    def _digest(self) -> str:
        return str(self.base_fn.text_digest())

    def _tune(self, launch: Launch, key: StoredKey | None) -> Tuning:
        """Chooses among all configurations; measures them if that is wanted now."""
        if self.proposal is not None:
            self.configs = self.proposal.configs(launch.named)
        plain = {name: value for name, value in launch.kwargs.items() if name != "grid"}
        configs = _distinct(self.prune_configs(plain), launch.named)
        if len(configs) == 1:
            return Tuning(configs[0], "the only configuration")
        tuning = Tuning(configs[0], "", key=key)
        stored = Stored.find(key) if key is not None else Stored()
        tuning.outcomes = {c: stored.outcomes[str(c)] for c in configs if str(c) in stored.outcomes}
        pinned = next((config for config in configs if str(config) == stored.pinned), None)
        if pinned is not None:
            tuning.best, tuning.reason = pinned, "pinned"
            return tuning
        fresh = [config for config in configs if config not in tuning.outcomes]
        if self.measure == "never" and tuning.times:
            fresh = []
        if fresh:
            self._quote(tuning, launch, fresh)
        fresh = [config for config in fresh if config not in tuning.outcomes]
        fresh = self._worth_measuring(tuning, fresh)
        if self.proposal is not None:
            fresh = self._same_results(tuning, launch, fresh, configs) if fresh else []
        if self.measure == "now" and not is_capturing(launch.named):
            # In the user's order, which may be that of a clock of theirs.
            self._measure(tuning, launch, [config for config in configs if config in fresh], self.effort)
            fresh = []
        tuning.waiting = [] if self.measure == "never" else fresh
        if fresh and not tuning.times:
            tuning.best = self._first_that_compiles(tuning, launch, fresh)
            quote = tuning.quotes.get(tuning.best)
            tuning.reason = "the first" if quote is None else f"by price, {quote.us:.3g} us"
            return tuning
        self._choose(tuning)
        return tuning

    def _quote(self, tuning: Tuning, launch: Launch, configs: list[Config]) -> None:
        """Asks the price of configurations; notes those that do not compile."""

        def quote(config: Config) -> Quote | None:
            self._prepare(config, launch)
            found = self.fn.quote(*launch.args, **launch.kwargs, **config.all_kwargs())
            return found if isinstance(found, Quote) else None

        for config, found in zip(configs, in_parallel(quote, configs, self._threads(configs)), strict=True):
            if isinstance(found, KilnError):
                tuning.outcomes[config] = _reason(found)
            elif found is not None:
                tuning.quotes[config] = found
                if found.us == float("inf"):
                    shared = found.footprint["shared"]
                    tuning.outcomes[config] = f"an instance takes {shared} bytes of shared memory, more than there are"

    def _prepare(self, config: Config, launch: Launch) -> None:
        if config.pre_hook is not None:
            config.pre_hook({**(self.nargs or {}), **launch.kwargs, **config.all_kwargs()})

    def _threads(self, configs: list[Config]) -> int:
        # A hook may change the arguments, which others would see.
        return 1 if any(config.pre_hook is not None for config in configs) else len(configs)

    def _worth_measuring(self, tuning: Tuning, configs: list[Config]) -> list[Config]:
        """The configurations in the order of their prices, without those of the same program, and
        without those that are far too dear."""
        quotes = tuning.quotes
        if any(config not in quotes for config in configs):
            return configs
        unlike: dict[str, Config] = {}
        for config in configs:
            unlike.setdefault(quotes[config].code, config)
        ordered = sorted(unlike.values(), key=lambda config: quotes[config].us)
        if self.price_factor is None or not ordered:
            return ordered
        most = self.price_factor * quotes[ordered[0]].us
        return [c for n, c in enumerate(ordered) if n < _FEWEST or quotes[c].us <= most]

    def _same_results(
        self, tuning: Tuning, launch: Launch, configs: list[Config], every: list[Config]
    ) -> list[Config]:
        """Of proposed configurations those that compute what the largest blocks do, which may be all
        that is right."""
        assert self.proposal is not None

        def run(config: Config) -> None:
            self.fn.run(*launch.args, **launch.kwargs, **config.all_kwargs())

        tried = configs[:_MOST_PROPOSED]
        changed = {*self._tensors(tuning, launch, "changed")}
        results = Results(self._tensors(tuning, launch, "written"), changed)
        every = [config for config in every if config not in tuning.failures]
        trial = self.proposal.same_results(run, tried, every, results)
        tuning.outcomes.update(trial.wrong)
        right = [config for config in tried if config not in trial.wrong]
        if trial.reference is None or trial.reference in {*right, *tuning.times}:
            return right
        return [*right, trial.reference]

    def _first_that_compiles(self, tuning: Tuning, launch: Launch, configs: list[Config]) -> Config:
        for config in configs:
            [failed] = self._compile(launch, [config])
            if failed is None:
                return config
            tuning.outcomes[config] = _reason(failed)
        raise self._no_configuration(tuning)

    def _compile(self, launch: Launch, configs: list[Config]) -> list[KilnError | None]:
        """Compiles configurations in parallel; gives what those that fail raise."""
        device = device_of(launch.named)

        def compile_one(config: Config) -> None:
            self._prepare(config, launch)
            arguments = {**launch.kwargs, **config.all_kwargs()}
            if device is None:
                self.fn.run(*launch.args, warmup=True, **arguments)
                return
            import torch

            with torch.cuda.device(device):
                self.fn.run(*launch.args, warmup=True, **arguments)

        return in_parallel(compile_one, configs, self._threads(configs))

    def _measure(self, tuning: Tuning, launch: Launch, configs: list[Config], effort: Effort) -> None:
        """Compiles configurations in parallel, and measures one after the other; times are stored."""
        found: dict[Config, Outcome] = {}
        errors = {c: e for c, e in zip(configs, self._compile(launch, configs), strict=True) if e is not None}
        saved = Saved(self._tensors(tuning, launch, "changed"))
        for config in (config for config in configs if config not in errors):
            try:
                found[config] = self._measured(config, launch.args, launch.kwargs, saved, effort)
            except KilnError as e:
                errors[config] = e
        saved.restore()
        if found:
            named = {**(self.nargs or {}), **launch.kwargs, **configs[0].all_kwargs()}
            self.pre_hook(named, reset_only=True)
        # What the device refuses today it may take tomorrow.
        found |= {config: _reason(e) for config, e in errors.items() if isinstance(e, _LASTING)}
        if tuning.key is not None:
            store(tuning.key, found)
        tuning.outcomes.update({config: _reason(e) for config, e in errors.items()} | found)

    def _tensors(self, tuning: Tuning, launch: Launch, which: str) -> dict[str, Any]:
        """The tensors that runs write or change, by Kiln's analysis of the kernel."""
        numbers = {n for quote in tuning.quotes.values() for n in getattr(quote, which)}
        kept = {*self.reset_to_zero, *self.restore_value} if which == "changed" else set()
        names = self.base_fn.arg_names
        tensors = {names[n]: tensor_of(launch.named.get(names[n])) for n in sorted(numbers)}
        return {name: t for name, t in tensors.items() if t is not None and name not in kept}

    def _choose(self, tuning: Tuning) -> None:
        times = tuning.times
        if not times:
            raise self._no_configuration(tuning)
        tuning.best = min(times, key=lambda config: times[config])
        tuning.reason = f"measured, {1e3 * times[tuning.best][0]:.4g} us"

    def _no_configuration(self, tuning: Tuning) -> KernelError:
        reasons = "".join(f"\n  {config}: {why}" for config, why in tuning.failures.items())
        return KernelError(f"no configuration of {self.__name__} runs; add one that does:{reasons}")

    def _finish(self, tuning: Tuning, launch: Launch, seconds: float) -> None:
        """Gives users what was found, and prints it if they ask for it."""
        self.configs_timings, self.failures = tuning.times, tuning.failures
        self.prices = {config: quote.us for config, quote in tuning.quotes.items()}
        self.bench_time = seconds
        if "1" in (os.environ.get("KILN_PRINT_AUTOTUNING"), os.environ.get("TRITON_PRINT_AUTOTUNING")):
            print(self._told(tuning, launch))

    def _told(self, tuning: Tuning, launch: Launch) -> str:
        values = {part.text: part.value(launch.named) for part in self._key_parts if part.known(launch.named)}
        key = ", ".join(f"{name}={value}" for name, value in values.items())
        lines = [f"{self.__name__}({key}): {tuning.best} ({tuning.reason})"]
        counts = f"{len(tuning.times)} measured, {len(tuning.failures)} failed, {self.bench_time:.2f} s"
        lines.append(f"  {len(self.configs)} configurations: {counts}")
        priced = [config for config in tuning.times if config in tuning.quotes]
        if priced:
            first = min(priced, key=lambda config: tuning.quotes[config].us)
            share = tuning.times[tuning.best][0] / tuning.times[first][0]
            lines.append(f"  the price's first choice reaches {share:.2f} of the best: {first}")
        return "\n".join([*lines, *(f"  {config}: {why}" for config, why in tuning.failures.items())])

    def measured(self, named: dict[str, Any]) -> Config | None:
        """The configuration that was measured for a launch with these arguments, if one was."""
        given = {name: v for name, v in named.items() if name in self.arg_names}
        dtypes = [str(v.dtype) for v in given.values() if hasattr(v, "dtype")]
        values = [part.value(given) for part in self._key_parts if part.known(given)]
        plain = all(isinstance(v, (int, float, str, bool, type(None))) for v in values)
        return self.cache.get((*values, *dtypes)) if plain and self.proposal is None else None

    def kept(self, named: dict[str, Any]) -> list[Config]:
        """The configurations that pruning leaves for a launch that is traced, in its order."""
        given = {name: value for name, value in named.items() if name in self.arg_names}
        if self.proposal is not None:
            return sorted(self.proposal.configs(given), key=self.proposal.elements, reverse=True)
        if self.early_config_prune is None and self.perf_model is None:
            return list(self.configs)
        before = self.nargs
        self.nargs = given
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
            return self._measured(config, args, kwargs, Saved({}), self.effort)
        except KilnError:
            return [float("inf")] * 3

    def _measured(
        self, config: Config, args: Any, kwargs: dict[str, Any], saved: Saved, effort: Effort
    ) -> list[float]:
        current = {**kwargs, **config.all_kwargs()}
        named = {**(self.nargs or {}), **current}

        def before(named: dict[str, Any]) -> None:
            if config.pre_hook is not None:
                config.pre_hook(named)
            self.pre_hook(named)

        def run() -> None:
            self.fn.run(*args, **current)

        if self.do_bench is None:
            hooks = Hooks(before, self.post_hook)
            return measured(run, named, saved, hooks, effort, "cuda" if on_gpu(named) else "cpu")

        def once() -> None:
            saved.restore()
            before(named)
            try:
                run()
            except Exception as e:
                self.post_hook(named, exception=e)
                raise
            self.post_hook(named, exception=None)

        return list(self.do_bench(once, quantiles=(0.5, 0.2, 0.8)))


def _reason(error: BaseException) -> str:
    """Why a configuration fails, in the first line of what was raised."""
    return str(error).strip().split("\n")[0]


def _distinct(configs: list[Config], named: dict[str, Any]) -> list[Config]:
    """The configurations with different code: stages are the compiler's own choice, and processors
    have no warps."""
    gpu = on_gpu(named)
    found: dict[Any, Config] = {}
    for config in configs:
        constants = tuple(sorted((name, repr(value)) for name, value in config.kwargs.items()))
        found.setdefault((constants, config.num_warps if gpu else 0, config.pre_hook), config)
    return list(found.values())


def autotune(
    configs: list[Config] | None = None, key: list[str] | None = None, **options: Any
) -> Callable[[Any], Autotuner]:
    """Chooses the fastest of some configurations for each combination of values of `key`. Without
    `configs`, Kiln proposes some."""

    def decorate(kernel: Any) -> Autotuner:
        return Autotuner(kernel, kernel.arg_names, configs, key or [], **options)

    return decorate
