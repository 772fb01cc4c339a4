"""A kernel's source: its text, where it stands, and what its names are bound to.

The text is read when a function is decorated, so that a file which is edited later changes nothing.
Names are resolved when a kernel is first compiled: helpers may be defined after it.
"""

from __future__ import annotations

import builtins
import inspect
import re
import textwrap
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Callable

from kiln import _native
from kiln.language import core
from kiln.language.core import Primitive, PropagateNan, constexpr, dtype, pointer_type

_DEF = re.compile(r"^(?:async\s+)?def\s+\w+\s*[\(\[]", re.MULTILINE)

#: Names of classes that kernels know by another one.
_CLASSES = {"tuple_type": "tuple"}

#: Where Triton's own names are defined; each is a name of Kiln's language.
_TRITON = ("triton.language", "triton.tools")

#: Functions of the module `triton` that are names of the language: they take values of a run too.
_TRITON_FUNCTIONS = ("_log2", "cdiv", "next_power_of_2")


@dataclass
class Source:
    """The text of a function, from `def` on."""

    name: str
    file: str
    #: The line of the file at which `text` starts.
    first_line: int
    column_shift: int
    text: str
    #: Why there is no text.
    missing: str | None = None

    @staticmethod
    def of(fn: Callable[..., Any]) -> Source:
        name = getattr(fn, "__qualname__", repr(fn))
        file = getattr(getattr(fn, "__code__", None), "co_filename", "<unknown>")
        try:
            lines, first = inspect.getsourcelines(fn)
        except (OSError, TypeError) as e:
            return Source(name, file, 0, 0, "", f"its source cannot be read ({e})")
        whole = "".join(lines)
        text = textwrap.dedent(whole)
        shift = len(lines[0]) - len(lines[0].lstrip())
        found = _DEF.search(text)
        if found is None:
            return Source(name, file, first, shift, "", "it is no function that `def` begins")
        before = text[: found.start()].count("\n")
        return Source(name, file, first + before, shift, text[found.start() :])


@dataclass
class Unit:
    """A kernel and its helpers, as the compiler takes them, and the globals that they read."""

    functions: list[dict[str, Any]] = field(default_factory=list)
    #: Where each global constant was found, its name and its value then.
    globals: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list)


class Collector:
    """Resolves the names of a kernel and of the helpers that it calls."""

    def __init__(self) -> None:
        self.unit = Unit()
        self._index: dict[int, int] = {}
        self._kept: list[Any] = []

    def add(self, kernel: Any) -> int:
        """The place of a kernel or helper among the functions of the unit."""
        known = self._index.get(id(kernel))
        if known is not None:
            return known
        index = self._index[id(kernel)] = len(self.unit.functions)
        self._kept.append(kernel)
        source: Source = kernel.source
        function: dict[str, Any] = {
            "name": source.name,
            "file": source.file,
            "first_line": source.first_line,
            "column_shift": source.column_shift,
            "source": source.text,
            "compile_time": isinstance(kernel, ConstexprFunction),
        }
        self.unit.functions.append(function)
        scope = _Scope(kernel.fn)
        function["bindings"] = bindings = {}
        for path in _native.kernel_names(source.text):
            bound = self._bound(scope, path)
            if bound is not None:
                bindings[bound[0]] = bound[1]
        if function["compile_time"]:
            self._add_python_functions(scope, bindings)
        function["defaults"] = {
            p.name: self.binding(p.default)
            for p in inspect.signature(kernel.fn).parameters.values()
            if p.default is not inspect.Parameter.empty
        }
        return index

    def _add_python_functions(self, scope: _Scope, bindings: dict[str, Any]) -> None:
        """What runs at compile time may call any Python function that does."""
        for name, binding in bindings.items():
            found, value, _ = scope.get(name)
            if "python_function" in binding and found and inspect.isfunction(value):
                bindings[name] = {"function": self.add(_constexpr_function(value))}

    def _bound(self, scope: _Scope, path: str) -> tuple[str, dict[str, Any]] | None:
        """The longest prefix of a dotted name that Python can resolve now, and what it is."""
        first, *rest = path.split(".")
        found, value, home = scope.get(first)
        if not found:
            return None
        prefix = first
        for part in rest:
            # Attributes of modules and of plain holders of constants; not of blocks and types.
            if not isinstance(value, (ModuleType, type)) or not hasattr(value, part):
                break
            value = getattr(value, part)
            prefix = f"{prefix}.{part}"
        if isinstance(value, ModuleType) and prefix == path and not rest:
            return prefix, {"module": value.__name__}
        if home is not None and prefix == first and isinstance(value, constexpr):
            self.unit.globals.append((home, first, value.value))
        return prefix, self.binding(value)

    def binding(self, value: Any) -> dict[str, Any]:
        """What the compiler is told of an object."""
        if _is_constexpr(value):
            value = value.value
            if inspect.isfunction(value):
                return {"function": self.add(_constexpr_function(value))}
        if isinstance(value, ModuleType):
            return {"module": value.__name__}
        if isinstance(value, Primitive):
            return {"primitive": value.name}
        if value is PropagateNan:
            return {"module": "kiln.language.PropagateNan"}
        # Types of values of the language, which kernels ask `isinstance` for or make others with.
        if isinstance(value, type) and value.__module__ == core.__name__:
            return {"primitive": _CLASSES.get(value.__name__, value.__name__)}
        name = _of_triton(value)
        if name is not None:
            return name
        if isinstance(value, dtype) and not isinstance(value, pointer_type):
            return {"dtype": value.name}
        if is_kernel(value):
            return {"function": self.add(as_kernel(value))}
        if isinstance(value, ConstexprFunction):
            return {"function": self.add(value)}
        if _is_constexpr_function(value):
            return {"function": self.add(_constexpr_function(value.fn))}
        literal = self.literal(value)
        if literal is not None:
            return {"constant": literal}
        if inspect.isfunction(value) or inspect.isbuiltin(value):
            return {"python_function": getattr(value, "__qualname__", repr(value))}
        return {"unknown": type(value).__name__}

    def literal(self, value: Any) -> Any:
        """A constant of the launch or of the source; `None` if it is none."""
        if _is_constexpr(value):
            value = value.value
        if value is None:
            return "none"
        if isinstance(value, bool):
            return {"bool": value}
        if isinstance(value, int):
            return {"int": value}
        if isinstance(value, float):
            return {"float": value if value == value and abs(value) != float("inf") else str(value)}
        if isinstance(value, str):
            return {"str": value}
        if isinstance(value, pointer_type):
            return {"pointer": value.pointee.name}
        if isinstance(value, dtype):
            return {"dtype": value.name}
        if isinstance(value, Primitive):
            return {"primitive": value.name}
        if is_kernel(value):
            return {"function": self.add(as_kernel(value))}
        if isinstance(value, (tuple, list)):
            parts = [self.literal(v) for v in value]
            if any(p is None for p in parts):
                return None
            fields = getattr(value, "_fields", None)
            if fields is not None:
                return {"record": {"fields": list(fields), "values": parts}}
            return {"tuple": parts}
        found = _of_triton(value)
        return found if found is not None and ("dtype" in found or "primitive" in found) else None


class _Scope:
    """The names that a function sees: of the functions around it, then global ones."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.globals = fn.__globals__
        self.cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False))

    def get(self, name: str) -> tuple[bool, Any, dict[str, Any] | None]:
        if name in self.cells:
            try:
                return True, self.cells[name].cell_contents, None
            except ValueError:
                return False, None, None
        if name in self.globals:
            return True, self.globals[name], self.globals
        # Python's own functions mean in a kernel what they mean at compile time.
        if hasattr(builtins, name):
            return False, None, None
        return False, None, None


def _of_triton(value: Any) -> dict[str, Any] | None:
    """A name of Triton's language as one of Kiln's."""
    module = getattr(value, "__module__", None) or ""
    kind = type(value)
    if kind.__name__ == "dtype" and kind.__module__.startswith("triton."):
        return {"dtype": value.name}
    if kind.__name__ == "PROPAGATE_NAN":
        return {"primitive": f"PropagateNan.{value.name}"}
    if _is_constexpr_function(value) and value.fn.__module__.partition(".")[0] == "triton":
        name = value.fn.__name__
        return {"primitive": name} if name in _TRITON_FUNCTIONS else None
    if isinstance(module, str) and module.startswith(_TRITON):
        name = getattr(value, "__name__", "")
        return {"primitive": f"libdevice.{name}" if module.endswith(".libdevice") else name}
    return None


class ConstexprFunction:
    """A function of constants that is computed while a kernel is compiled."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.source = Source.of(fn)
        self.__name__ = getattr(fn, "__name__", repr(fn))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        def plain(value: Any) -> Any:
            return value.value if isinstance(value, constexpr) else value

        named = {name: plain(value) for name, value in kwargs.items()}
        return constexpr(self.fn(*(plain(a) for a in args), **named))


_CONSTEXPR_FUNCTIONS: dict[Callable[..., Any], ConstexprFunction] = {}


def _constexpr_function(fn: Callable[..., Any]) -> ConstexprFunction:
    """The same object for the same function, so that a unit holds it once."""
    return _CONSTEXPR_FUNCTIONS.setdefault(fn, ConstexprFunction(fn))


def _is_constexpr(value: Any) -> bool:
    """Whether it is a constant of Kiln's, or of Triton's."""
    kind = type(value)
    of_triton = kind.__name__ == "constexpr" and kind.__module__.startswith("triton.")
    return of_triton or isinstance(value, constexpr)


def _is_constexpr_function(value: Any) -> bool:
    """Whether Triton's `constexpr_function` decorated it."""
    kind = type(value)
    return kind.__name__ == "ConstexprFunction" and kind.__module__.startswith("triton.")


def is_kernel(value: Any) -> bool:
    """Whether it is a kernel of Kiln's, or one that `triton.jit` decorated."""
    from kiln.kernels.kernel import Kernel

    kind = type(value)
    return isinstance(value, Kernel) or (
        kind.__name__ == "JITFunction" and kind.__module__.startswith("triton.")
    )


def as_kernel(value: Any) -> Any:
    """A kernel of Kiln's from either."""
    from kiln.kernels.kernel import Kernel, ported_function

    return value if isinstance(value, Kernel) else ported_function(value)
