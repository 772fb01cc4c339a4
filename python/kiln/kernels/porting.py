"""Kernels of Triton as Kiln's: the function, and the configurations and heuristics around it."""

from __future__ import annotations

from typing import Any

from kiln.kernels.kernel import Kernel, ported_function
from kiln.kernels.tuning import Autotuner, Heuristics, Wrapped

_PORTED: dict[int, tuple[Any, Kernel[Any] | Wrapped]] = {}

#: What an autotuner of Triton's keeps under the names that its decorator takes.
_OPTIONS = ("reset_to_zero", "restore_value")
_HOOKS = ("pre_hook", "post_hook")


def port(kernel: Any) -> Kernel[Any] | Wrapped:
    """A kernel that `triton.jit`, and around it `triton.autotune` and `triton.heuristics`,
    decorated, or the kernel of a plain function. Configurations are measured again, as Kiln's."""
    if isinstance(kernel, (Kernel, Wrapped)):
        return kernel
    known = _PORTED.get(id(kernel))
    if known is not None:
        return known[1]
    ported = _ported(kernel)
    _PORTED[id(kernel)] = (kernel, ported)
    return ported


def _ported(kernel: Any) -> Kernel[Any] | Wrapped:
    inner = getattr(kernel, "fn", None)
    if inner is None or not hasattr(inner, "fn"):
        return ported_function(kernel)
    if isinstance(getattr(kernel, "configs", None), list):
        return _tuned(kernel, port(inner))
    if isinstance(getattr(kernel, "values", None), dict):
        return Heuristics(port(inner), kernel.values)
    return port(inner)


def _tuned(kernel: Any, inner: Kernel[Any] | Wrapped) -> Autotuner:
    options: dict[str, Any] = {name: getattr(kernel, name, None) for name in _OPTIONS}
    for name in _HOOKS:
        # A hook that resets and restores is Triton's own: those tensors are in the options.
        if getattr(kernel, f"user_defined_{name}", False):
            options[name] = getattr(kernel, name)
            if name == "pre_hook":
                options["reset_to_zero"] = options["restore_value"] = None
    options["prune_configs_by"] = {
        "early_config_prune": getattr(kernel, "early_config_prune", None),
        "perf_model": getattr(kernel, "perf_model", None),
        "top_k": getattr(kernel, "configs_top_k", 1.0),
    }
    keys = list(getattr(kernel, "keys", None) or [])
    return _PortedAutotuner(kernel, inner, inner.arg_names, kernel.configs, keys, **options)


class _PortedAutotuner(Autotuner):
    """Tells the autotuner of Triton what was chosen: functions that launch kernels read it there."""

    def __init__(self, origin: Any, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.origin = origin

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        launched = super().run(*args, grid=grid, warmup=warmup, **kwargs)
        self.origin.best_config = self.best_config
        return launched
