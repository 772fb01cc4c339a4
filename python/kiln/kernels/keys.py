"""What tells launches of a tuned kernel apart: names of arguments, and expressions of them.

`key=["M", "cdiv(N, 64)", "K // 1024"]` tunes again for another M, and for another bucket of N and K. Expressions
have integers, the names of arguments, `+ - * // %`, `cdiv`, `next_power_of_2`, `min` and `max`, and nothing else:
they are no Python that runs.
"""

from __future__ import annotations

import ast
import operator
from typing import Any, Callable

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "cdiv": lambda a, b: -(-a // b),
    "next_power_of_2": lambda n: 1 << max(n - 1, 0).bit_length(),
    "min": min,
    "max": max,
}
_HAVE = "an expression has integers, arguments, + - * // %, cdiv, next_power_of_2, min and max"


class KeyPart:
    """A part of the key, read when the kernel is decorated."""

    def __init__(self, text: str, arguments: list[str]) -> None:
        self.text = text
        self.tree: ast.expr | None = None
        if text.isidentifier():
            return
        try:
            self.tree = ast.parse(text, mode="eval").body
        except SyntaxError as e:
            raise ValueError(f"`{text}` in key is no expression: {e.msg}; {_HAVE}") from None
        for node in ast.walk(self.tree):
            self._check(node, arguments)

    def _check(self, node: ast.AST, arguments: list[str]) -> None:
        if isinstance(node, ast.Name):
            if node.id not in arguments and node.id not in _FUNCTIONS:
                known = ", ".join(arguments)
                raise ValueError(f"`{self.text}` in key names `{node.id}`; the arguments are {known}")
        elif isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS or node.keywords:
                raise ValueError(f"`{self.text}` in key calls `{ast.unparse(node.func)}`; {_HAVE}")
        elif isinstance(node, ast.BinOp):
            self._check_operator(node.op)
        elif isinstance(node, ast.Constant):
            if type(node.value) is not int:
                raise ValueError(f"`{self.text}` in key has {node.value!r}; {_HAVE}")
        elif isinstance(node, ast.UnaryOp):
            if not isinstance(node.op, ast.USub):
                raise ValueError(f"`{self.text}` in key has another operator; {_HAVE}")
        elif not isinstance(node, (ast.operator, ast.unaryop, ast.expr_context)):
            raise ValueError(f"`{self.text}` in key has `{ast.unparse(node)}`; {_HAVE}")

    def _check_operator(self, found: ast.operator) -> None:
        if type(found) not in _OPERATORS:
            raise ValueError(f"`{self.text}` in key has another operator; {_HAVE}")

    def value(self, named: dict[str, Any]) -> Any:
        """Its value for a launch with these arguments."""
        if self.tree is None:
            return named[self.text]
        try:
            return self._evaluated(self.tree, named)
        except ZeroDivisionError:
            raise ValueError(f"`{self.text}` in key divides by zero; give it another divisor") from None
        except TypeError as e:
            raise ValueError(f"`{self.text}` in key cannot be computed: {e}; {_HAVE}") from None

    def known(self, named: dict[str, Any]) -> bool:
        """Whether the launch has it: arguments that are left out are no part of the key."""
        return self.tree is not None or self.text in named

    def _evaluated(self, node: ast.expr, named: dict[str, Any]) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return self._argument(node.id, named)
        if isinstance(node, ast.UnaryOp):
            return -self._evaluated(node.operand, named)
        if isinstance(node, ast.BinOp):
            left, right = self._evaluated(node.left, named), self._evaluated(node.right, named)
            return _OPERATORS[type(node.op)](left, right)
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        return int(_FUNCTIONS[node.func.id](*(self._evaluated(arg, named) for arg in node.args)))

    def _argument(self, name: str, named: dict[str, Any]) -> int:
        if name not in named:
            raise ValueError(f"`{self.text}` in key names `{name}`, which the launch leaves out; pass it")
        value = named[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(
                f"`{self.text}` in key computes with `{name}`, which is a {type(value).__name__} and no "
                "integer; name it alone"
            )
        return value
