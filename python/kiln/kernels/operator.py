"""Operators of PyTorch from kernels: functions of tensors that give new tensors.

An operator is a plain function: its outputs are allocated, and its kernel is launched. So every
door traces it as it traces the launch, and `register_autograd` gives it a derivative.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from kiln.kernels.kernel import Kernel
from kiln.kernels.porting import port
from kiln.kernels.tuning import Wrapped

#: Keywords of a launch that are no parameters of the kernel.
_OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg"})


#: All operators: dynamo finds them here, by their positions.
_OPERATORS: list[Operator] = []


def op(
    kernel: Any,
    *,
    outputs: Mapping[str, Callable[..., torch.Tensor]],
    grid: Any,
    given: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Operator:
    """An operator of PyTorch from a kernel.

    `kernel`: of Kiln or of Triton, also with configurations and heuristics around it. `outputs`:
    for each parameter that the kernel writes, a function that allocates it; it takes the operator's
    arguments by the names that it asks for. `grid`: as in a launch, or a function of the arguments
    by name. `given`: parameters that the operator does not have: numbers, constants and options of
    the launch, or functions of the operator's arguments, as `outputs` are. `name`: the kernel's
    name if left out.

    The operator takes the other parameters in the order of the kernel, by place or by name, and
    gives its outputs: one tensor, or a tuple in the order of `outputs`. What it takes stays as it
    is: a kernel that writes to another parameter is refused.

    >>> import kiln
    >>> import kiln.language as kl
    >>> @kiln.kernel
    ... def twice_kernel(x, out, n, BLOCK: kl.constexpr):
    ...     at = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    ...     kl.store(out + at, kl.load(x + at, at < n) * 2, at < n)
    """
    return Operator(port(kernel), dict(outputs), grid, dict(given or {}), name)


class Operator:
    """What `op` gives: call it with tensors and numbers."""

    def __init__(
        self,
        kernel: Kernel[Any] | Wrapped,
        outputs: dict[str, Callable[..., torch.Tensor]],
        grid: Any,
        given: dict[str, Any],
        name: str | None,
    ) -> None:
        self.kernel = kernel
        self.grid = grid
        self.__name__ = name or kernel.__name__
        known = {*kernel.arg_names}
        unknown = [n for n in outputs if n not in known]
        unknown += [n for n in given if n not in known | _OPTIONS]
        if unknown or not outputs:
            what = f"`{unknown[0]}` is no parameter of it" if unknown else "it has no outputs"
            names = ", ".join(kernel.arg_names)
            raise TypeError(f"an operator of {kernel.__name__}: {what}; its parameters are {names}")
        twice = outputs.keys() & given.keys()
        if twice:
            raise TypeError(f"an operator of {kernel.__name__}: `{min(twice)}` is an output and given; remove one")
        self.outputs = [(n, make, _names_of(make)) for n, make in outputs.items()]
        functions = {n: value for n, value in given.items() if inspect.isfunction(value)}
        self.given = {n: value for n, value in given.items() if n not in functions}
        self.computed = [(n, f, _names_of(f)) for n, f in functions.items()]
        taken = [n for n in kernel.arg_names if n not in outputs and n not in given]
        self.parameters = taken
        self.backward: Any = None
        self.setup_context: Any = None
        #: Where it is in the list of all operators.
        self.position = len(_OPERATORS)
        _OPERATORS.append(self)
        self._is_checked = False

    def register_autograd(
        self,
        backward: Callable[..., Any],
        /,
        *,
        setup_context: Callable[..., Any] | None = None,
    ) -> None:
        """Gives the operator a derivative, as `torch.library.register_autograd` does.

        `backward(ctx, *grads)`: gives a gradient or None for each of the operator's arguments.
        `setup_context(ctx, inputs, output)`: saves what it needs.
        """
        self.backward, self.setup_context = backward, setup_context

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inputs = self._bound(args, kwargs)
        if self.backward is not None and torch.is_grad_enabled():
            return _Differentiable.apply(self.position, *inputs)
        return self.launch(*inputs)

    def launch(self, *inputs: Any) -> Any:
        """Allocates the outputs and launches the kernel, without a derivative."""
        named = dict(zip(self.parameters, inputs))  # noqa: B905
        results = []
        arguments = {**named, **self.given}
        for name, function, wanted in self.computed:
            arguments[name] = function(*[named[n] for n in wanted])
        for name, make, wanted in self.outputs:
            result = make(*[named[n] for n in wanted])
            results.append(result)
            arguments[name] = result
        if not is_dynamo_compiling() and not self._is_checked:
            self._check(arguments)
        self.kernel[self.grid](**arguments)
        return results[0] if len(results) == 1 else tuple(results)

    def _check(self, arguments: dict[str, Any]) -> None:
        """Fails unless the kernel writes the outputs and nothing else."""
        from kiln.kernels.traced import written

        found = written(self.kernel, arguments)
        names = [name for name, _, _ in self.outputs]
        others = [name for name in found if name not in names]
        if others:
            raise TypeError(
                f"{self.__name__}() gives {', '.join(names)}, and its kernel writes to `{others[0]}` too; make it "
                "an output, or write to a copy"
            )
        idle = [name for name in names if name not in found]
        if idle:
            raise TypeError(f"the kernel of {self.__name__}() never writes to its output `{idle[0]}`; remove it")
        self._is_checked = True

    def _bound(self, args: Any, kwargs: Any) -> list[Any]:
        """The values of the operator's parameters."""
        if len(args) > len(self.parameters):
            raise TypeError(
                f"{self.__name__}() takes {len(self.parameters)} arguments ({', '.join(self.parameters)}), "
                f"but {len(args)} were given"
            )
        values = list(args)
        used = 0
        for name in self.parameters[len(args) :]:
            if name in kwargs:
                values.append(kwargs[name])
                used += 1
            elif name in self.kernel.defaults:
                values.append(self.kernel.defaults[name])
            else:
                raise TypeError(f"{self.__name__}() lacks the argument `{name}`")
        if used != len(kwargs):
            wrong = [name for name in kwargs if name not in self.parameters[len(args) :]]
            raise TypeError(
                f"{self.__name__}() takes `{wrong[0]}` once at most; its arguments are {', '.join(self.parameters)}"
            )
        return values

    def __repr__(self) -> str:
        return f"<operator {self.__name__}({', '.join(self.parameters)})>"


class _Differentiable(torch.autograd.Function):
    """An operator with a derivative."""

    @staticmethod
    def forward(ctx: Any, position: int, *inputs: Any) -> Any:
        operator = _OPERATORS[position]
        ctx.position = position
        output = operator.launch(*inputs)
        if operator.setup_context is not None:
            operator.setup_context(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        found = _OPERATORS[ctx.position].backward(ctx, *grads)
        return (None, *found) if isinstance(found, tuple) else (None, found)


def _names_of(function: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters."""
    try:
        return list(inspect.signature(function).parameters)
    except ValueError:
        name = getattr(function, "__name__", function)
        what = f"the parameters of {name} cannot be read; write a function, as `lambda x: {name}(x)`"
        raise TypeError(what) from None
