"""The table that the `@example` decorator fills."""

from dataclasses import dataclass
from typing import Callable

EXAMPLES = {}


@dataclass
class Example:
    build: Callable
    how: str
    group: str


def example(name, how="trace", group="small"):
    """Registers a function that gives (module, inputs)."""

    def register(build):
        EXAMPLES[name] = Example(build, how, group)
        return build

    return register
