"""Why a kernel does not compile."""

from __future__ import annotations

from dataclasses import dataclass

from kiln._native import KilnError


class _Refused(KilnError):  # noqa: N818
    """A kernel that does not compile."""

    @property
    def error_message(self) -> str:
        """What is wrong, for ports."""
        return str(self)


class KernelUnsupported(_Refused):
    """The source has something that Kiln's language of kernels does not have: the message names it,
    with file, line and column, and what to write instead."""


class KernelError(_Refused):
    """The source is wrong: types that do not fit, names without a meaning, shapes that do not
    broadcast."""


class KernelWarning(UserWarning):
    """A launch accesses memory outside of a tensor, whatever memory holds: by an access without a
    mask."""


class OutOfResources(KilnError):
    """A kernel needs more shared memory or registers than the machine has."""


@dataclass(frozen=True)
class Finding:
    """What a check of the interpreter found."""

    #: missing_mask, out_of_bounds, misaligned, overflow, race, conflict, uninitialised or assertion
    kind: str
    #: A sentence, the lines of the source, and what to write instead.
    message: str
    #: The parameter whose memory is accessed.
    tensor: str | None
    #: The first program instance that did it.
    instance: tuple[int, int, int]
    #: File and line.
    place: tuple[str, int] | None
    #: File and line of the other access of a race.
    other: tuple[str, int] | None

    def __str__(self) -> str:
        return self.message


class CheckFailed(KilnError):  # noqa: N818
    """The interpreter ran a kernel to its end, and its checks found mistakes: `findings`."""

    def __init__(self, kernel: str, findings: list[Finding]) -> None:
        self.findings = findings
        count = f"{len(findings)} mistakes" if len(findings) > 1 else "a mistake"
        super().__init__("\n\n".join([f"{kernel}: the checks found {count}", *map(str, findings)]))
