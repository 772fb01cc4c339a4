"""Kernels: functions that are compiled from their source, and launched over a grid."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from typing import Any, Callable, Generic, TypeVar

import torch
from torch.compiler import is_dynamo_compiling

from kiln import _native
from kiln.kernels import in_dynamo
from kiln.kernels.errors import KernelUnsupported
from kiln.kernels.quote import Quote
from kiln.kernels.source import Collector, ConstexprFunction, Source
from kiln.language.core import Array, dtype, pointer_type



def interpret_asked() -> bool:
    """Whether the environment asks that every kernel is interpreted."""
    return os.environ.get("KILN_INTERPRET", "0") not in ("", "0")


#: How many modes of torch trace operators.
_count_of_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack

F = TypeVar("F", bound=Callable[..., Any])

_DTYPES = {"i1": "int1", "u1": "int1"}


class Parameter:
    """A parameter of a kernel, and what its annotation says."""

    def __init__(self, num: int, parameter: inspect.Parameter, unspecialised: set[int | str]) -> None:
        self.num = num
        self.name = parameter.name
        self.default = parameter.default
        self.annotation = parameter.annotation
        self.do_not_specialize = bool({num, parameter.name} & unspecialised)

    @property
    def has_default(self) -> bool:
        return self.default is not inspect.Parameter.empty

    @property
    def is_constexpr(self) -> bool:
        annotation = self.annotation
        if isinstance(annotation, str):
            return annotation.rpartition(".")[2] == "constexpr"
        return getattr(annotation, "__name__", "") == "constexpr"

    @property
    def annotated(self) -> str | None:
        """The element type that the annotation says."""
        annotation = self.annotation
        if isinstance(annotation, str):
            name = annotation.rpartition(".")[2].lstrip("*").removeprefix("k")
            return _DTYPES.get(name, name)
        if annotation is Array:
            return "Array"
        if isinstance(annotation, pointer_type):
            return annotation.pointee.name
        if isinstance(annotation, dtype) or type(annotation).__name__ == "dtype":
            return str(annotation.name)
        return None

    def native(self) -> tuple[str, bool, str | None, bool, tuple[Any] | None]:
        default = (self.default,) if self.has_default else None
        return (self.name, self.is_constexpr, self.annotated, not self.do_not_specialize, default)


class Kernel(Generic[F]):
    """A kernel. `kernel[grid](...)` launches it: `grid` is one to three numbers of program
    instances, or a function of the arguments by name that gives them."""

    def __init__(
        self,
        fn: F,
        *,
        do_not_specialize: Any = (),
        do_not_specialize_on_alignment: Any = (),
        interpret: bool | None = None,
    ) -> None:
        self.fn = fn
        #: Launches run by the interpreter, with checks.
        self.interpret = interpret_asked() if interpret is None else interpret
        if interpret_asked():
            from kiln.kernels.interpret import fill_new_memory

            fill_new_memory()
        self.source = Source.of(fn)
        unspecialised = {*do_not_specialize, *do_not_specialize_on_alignment}
        parameters = inspect.signature(fn).parameters.values()
        self.params = [Parameter(i, p, unspecialised) for i, p in enumerate(parameters)]
        self.arg_names = [p.name for p in self.params]
        self.defaults = {p.name: p.default for p in self.params if p.has_default}
        #: By which a graph of dynamo names it.
        self.number = in_dynamo.register(self)
        self._native: Any = None
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(self, name, getattr(fn, name, None))

    @property
    def src(self) -> str:
        """The text that is compiled."""
        return self.source.text

    @property
    def cache_key(self) -> str:
        """A digest of the text, by which ports name files of their own."""
        return hashlib.sha256(f"{self.__module__}.{self.__name__}\n{self.source.text}".encode()).hexdigest()

    def _unsafe_update_src(self, text: str) -> None:
        """Compiles another text from now on."""
        self.source.text = text
        if self._native is not None:
            self._native.clear()

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        if is_dynamo_compiling():
            return in_dynamo.launcher(self, grid)
        if _count_of_modes():
            from kiln.kernels import traced

            return traced.launcher(self, grid)
        if self.interpret:
            from kiln.kernels.interpret import launcher

            return launcher(self, grid)
        native = self._native
        return (native if native is not None else self._compiler()).at(grid)  # type: ignore[no-any-return]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"{self.__name__} is a kernel: launch it over a grid, as {self.__name__}[grid](...)"
        )

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launches the kernel; only compiles it with `warmup`."""
        return self[grid](*args, warmup=warmup, **kwargs)

    def quote(self, *args: Any, grid: Any, **kwargs: Any) -> Quote:
        """The price of a launch, its program, and what it writes, without code for the device."""
        return Quote.parse(self._compiler().quote(grid, args, kwargs))

    def text_digest(self) -> str:
        """A digest of the text of this kernel and of all that it calls, wherever it stands."""
        functions = json.loads(self._describe([]))["unit"]["functions"]
        for function in functions:
            for place in ("file", "first_line", "column_shift"):
                function.pop(place, None)
        return hashlib.sha256(json.dumps(functions, sort_keys=True).encode()).hexdigest()

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Compiles the kernel for these arguments; a dtype stands for a tensor of it."""
        from kiln.kernels.mock import mocked

        return self.run(*(mocked(a) for a in args), grid=grid, warmup=True, **kwargs)

    def _compiler(self) -> Any:
        if self._native is None:
            if self.source.missing is not None:
                raise KernelUnsupported(
                    f"{self.__name__} cannot be compiled: {self.source.missing}. Kernels are "
                    "compiled from their text: define them in a file"
                )
            known = [self.__name__, *(p.native() for p in self.params)]
            self._native = _native.Kernel(known, self._describe)
        return self._native

    def _describe(self, constants: list[Any]) -> str:
        """The unit of this kernel and these constants of the launch, as the compiler reads them."""
        collector = Collector()
        entry = collector.add(self)
        literals = [_literal(collector, value, self) for value in constants]
        unit = {"functions": collector.unit.functions, "entry": entry}
        return json.dumps({"unit": unit, "literals": literals})

    def __repr__(self) -> str:
        return f"<kernel {self.__module__}.{self.__qualname__} at {id(self):#x}>"


def _literal(collector: Collector, value: Any, kernel: Kernel[Any]) -> Any:
    literal = collector.literal(value)
    if literal is None:
        raise TypeError(
            f"{kernel.__name__}() takes tensors, numbers and constants, not a {type(value).__name__}"
        )
    return literal


def jit(fn: Any = None, **options: Any) -> Any:
    """Makes a kernel of a function of blocks. Nothing is compiled before the first launch."""
    known = ("do_not_specialize", "do_not_specialize_on_alignment", "interpret")
    chosen = {name: options[name] for name in known if options.get(name)}

    def decorate(fn: Any) -> Any:
        return fn if isinstance(fn, Kernel) else Kernel(fn, **chosen)

    return decorate if fn is None else decorate(fn)


_PORTED: dict[int, tuple[Any, Kernel[Any]]] = {}


def ported_function(kernel: Any) -> Kernel[Any]:
    """The kernel of a function that `triton.jit` decorated, or of a plain one, without
    configurations and heuristics around it."""
    known = _PORTED.get(id(kernel))
    if known is not None:
        return known[1]
    fn = kernel
    options: dict[str, Any] = {}
    while not inspect.isfunction(fn):
        for name in ("do_not_specialize", "do_not_specialize_on_alignment"):
            options[name] = getattr(fn, name, None) or options.get(name, ())
        inner = getattr(fn, "fn", None)
        if inner is None:
            raise TypeError(f"{kernel!r} is no kernel: pass a function that triton.jit decorates")
        fn = inner
    ported: Kernel[Any] = Kernel(fn, **options)
    _PORTED[id(kernel)] = (kernel, ported)
    return ported


def constexpr_function(fn: Callable[..., Any]) -> ConstexprFunction:
    """Lets kernels call a Python function of constants."""
    return ConstexprFunction(fn)
