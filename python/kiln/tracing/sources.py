"""Where a call of a traced graph is in the user's source, and errors that say so."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path
from types import CodeType, FrameType

import torch
from torch import fx

from kiln._native import UnsupportedError

#: Where torch's own source is, which says little to users.
_TORCH = str(Path(torch.__file__).parent) + os.sep

#: Where the source of this package is.
_PACKAGE = str(Path(__file__).parent.parent) + os.sep

#: Files of no user.
_NOT_USERS = ("<", _PACKAGE)

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_SUBSCRIPT = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")
_ROOT = re.compile(r"^L\['([^']*)'\]")


def place(stack_trace: str | None) -> str:
    """The frames of a stack trace as lines of `file:line`, the innermost first.

    >>> place('  File "model.py", line 3, in forward\\n  File "layer.py", line 7, in forward')
    'layer.py:7\\nmodel.py:3'
    """
    frames = _FRAME.findall(stack_trace or "")
    # Names in angle brackets are of generated code; `kiln.explain` calls from a frame of its own.
    kept = [f"{file}:{line}" for file, line in reversed(frames) if not file.startswith(_NOT_USERS)]
    return "\n".join(kept)


#: Whether frames of a file are shown.
_SHOWN: dict[str, bool] = {}


def frames(until: CodeType) -> str:
    """The current user frames as a stack trace, the innermost last.

    `until`: the code of the function that called user code.

    >>> frames(frames.__code__).startswith("/")
    False
    """
    frame: FrameType | None = sys._getframe(1)
    found: list[str] = []
    while frame is not None and frame.f_code is not until:
        file = frame.f_code.co_filename
        shown = _SHOWN.get(file)
        if shown is None:
            shown = _SHOWN[file] = not file.startswith((*_NOT_USERS, _TORCH))
        if shown:
            found.append(f'  File "{file}", line {frame.f_lineno}, in {frame.f_code.co_name}')
        frame = frame.f_back
    return "\n".join(reversed(found))


def line(stack_trace: str | None) -> str:
    """The frame to show to a user: the innermost one outside of torch.

    >>> line('  File "model.py", line 3, in forward\\n  File "layer.py", line 7, in forward')
    'layer.py:7'
    """
    frames = place(stack_trace).splitlines()
    outside_torch = (frame for frame in frames if not frame.startswith(_TORCH))
    return next(outside_torch, frames[0] if frames else "")


def users_line(stack_trace: str | None) -> str:
    """The innermost frame outside of torch; empty if there is none.

    >>> users_line('  File "model.py", line 3, in forward')
    'model.py:3'
    """
    found = line(stack_trace)
    return "" if found.startswith(_TORCH) else found


def path(source: str) -> str:
    """The path of a module or parameter from dynamo's name of where it comes from.

    >>> path("L['self']._modules['encoder']._parameters['weight']"), path("L['x']")
    ('encoder.weight', 'x')
    """
    root = _ROOT.match(source)
    if root is None:
        return source
    rest = _SUBSCRIPT.sub(r".\1", source[root.end() :])
    if rest.startswith("["):
        return root.group(1) + rest
    # The name of the variable that holds a module says nothing about the module.
    return rest.strip(".") or root.group(1)


def module_path(source: str) -> str:
    """The path of a module within the compiled one, from the name in a node's module stack.

    >>> module_path("L['self'].layer.0"), module_path("layer.0"), module_path("L['self']")
    ('layer.0', 'layer.0', '')
    """
    root = _ROOT.match(source)
    return _SUBSCRIPT.sub(r".\1", source[root.end() :] if root else source).strip(".")


def refusal(what: str, node: fx.Node | None, remedy: str) -> UnsupportedError:
    """An `UnsupportedError`: what cannot be compiled, the line of user code, and the remedy."""
    user_place = line(node.meta.get("stack_trace")) if node is not None else ""
    suffix = f" at {user_place}" if user_place else ""
    return UnsupportedError(f"{what}{suffix}: {remedy}")


def of_live(text: str) -> str:
    """An error text of the native module, which speaks of saved models, for a module of this
    process.

    >>> of_live("the model was saved in training mode, as `aten::dropout` shows")
    'the module is in training mode, as `aten::dropout` shows'
    """
    text = text.replace("the model was saved in training mode", "the module is in training mode")
    return text.replace("before the model is exported", "before it is compiled")


def warn(text: str) -> None:
    """Warns of something in the user's line, the innermost one outside of Kiln and torch.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warn("the text")
    >>> str(caught[0].message), caught[0].filename.startswith("<doctest")
    ('kiln: the text', True)
    """
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith((_PACKAGE, _TORCH)):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"kiln: {text}", stacklevel=level)
