"""Why a kernel does not compile."""

from __future__ import annotations

from kiln._native import KilnError


class KernelUnsupported(KilnError):  # noqa: N818
    """The source has something that Kiln's language of kernels does not have: the message names it,
    with file, line and column, and what to write instead."""


class KernelError(KilnError):
    """The source is wrong: types that do not fit, names without a meaning, shapes that do not
    broadcast."""


class OutOfResources(KilnError):
    """A kernel needs more shared memory or registers than the machine has."""
