"""The example models by name: `EXAMPLES[name]` has `build()` -> (module, inputs), `how` (trace or script), `group`."""

from .registry import EXAMPLES
from . import networks, small, features, layers, memory, numbers  # noqa: F401  (they register themselves)

__all__ = ["EXAMPLES"]
