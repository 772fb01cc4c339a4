"""Why `torch.export` failed, in a sentence of Kiln's.

A module that fails eagerly as well was given wrong example inputs: its own error says what is
wrong with them. Everything else is about tracing.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kiln._native import InputError, KilnError, UnsupportedError, UsageError
from kiln.pieces import log
from kiln.tracing import sources

REMEDY = 'mend it, or use torch.compile(model, backend="kiln"), which runs what it cannot trace'


def of_export(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> KilnError:
    """The error to raise where a module could not be exported with these arguments."""
    log.debug("torch.export failed", exc_info=error)
    if "not in range [" in str(error):
        return UsageError(
            f"the example inputs are outside of `dynamic` ({first_line(error)}): pass example "
            "inputs of sizes that it allows"
        )
    # Errors of tracing are of torch's own classes.
    if type(error).__module__ == "builtins":
        eager = _eagerly(module, args, kwargs)
        if eager is not None:
            return InputError(
                f"{_name(module)} fails when it is run with the example inputs"
                f"{_place(eager)}: {first_line(eager)}; pass inputs that it takes"
            )
    text = f"torch.export cannot trace the module{_place(error)} ({first_line(error)})"
    return UnsupportedError(f"{text}: {REMEDY}")


def _eagerly(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Exception | None:
    """The error of a call without tracing, if it fails. Buffers keep their values."""
    before = [(b, b.detach().clone()) for b in module.buffers()]

    def copied(tree: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), tree)

    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module(*copied(args), **copied(kwargs))
    except Exception as error:
        return error
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
    return None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Context manager that holds back what torch logs and prints, unless tracing succeeds or the
    user set TORCH_LOGS.

    Where a trace fails torch writes pages before the sentence that says why.
    """
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    loggers = [logging.getLogger("torch")]
    loggers += [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.startswith("torch.") and isinstance(logger, logging.Logger)
    ]
    handlers = [handler for logger in loggers for handler in logger.handlers]
    written = io.StringIO()
    for handler in handlers:
        handler.addFilter(_is_not_torchs)
    try:
        with contextlib.redirect_stderr(written):
            yield
    except BaseException:
        log.debug("torch wrote: %s", written.getvalue())
        raise
    else:
        sys.stderr.write(written.getvalue())
    finally:
        for handler in handlers:
            handler.removeFilter(_is_not_torchs)


def _is_not_torchs(record: logging.LogRecord) -> bool:
    return not record.name.startswith("torch.")


def _name(module: torch.nn.Module) -> str:
    return str(getattr(module, "name", "")) or type(module).__name__


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class.

    >>> first_line(ValueError()), first_line(ValueError("a\\nb"))
    ('ValueError', 'a')
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _place(error: BaseException) -> str:
    """The user's line where an error was raised, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    trace = "\n".join(f'File "{f.filename}", line {f.lineno}' for f in frames)
    line = sources.users_line(trace)
    return f" at {line}" if line else ""
