"""Functions that are not of every machine: `libdevice`, `cuda`."""

from kiln.language.extra import cuda, libdevice

__all__ = ["cuda", "libdevice"]
