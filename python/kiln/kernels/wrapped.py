"""Kernels around kernels: they launch the inner one with more arguments."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.compiler import is_dynamo_compiling

from kiln.kernels import in_dynamo


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

    def quote(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """What is known of a launch before it is compiled (`kiln.kernels.quote`); None: nothing."""
        return None

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
        return self.fn.run(*args, grid=grid, warmup=warmup, **self._with_values(args, kwargs))

    def quote(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        return self.fn.quote(*args, grid=grid, **self._with_values(args, kwargs))

    def _with_values(self, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        for name, value in self.values.items():
            kwargs[name] = value({**dict(zip(self.arg_names, args, strict=False)), **kwargs})
        return kwargs


def heuristics(values: dict[str, Callable[[dict[str, Any]], Any]]) -> Callable[[Any], Heuristics]:
    """Computes constant parameters from the arguments of a launch."""

    def decorate(kernel: Any) -> Heuristics:
        return Heuristics(kernel, values)

    return decorate
