"""Fixtures of pytest that hold fusion decisions in place.

`kiln_plan(model, args)` gives the plan as text, `kiln_snapshot` compares equal to the text that is
kept beside the test, in `__kiln__/MODULE/TEST.txt`; `pytest --kiln-update` writes it:

    def test_plan(kiln_plan, kiln_snapshot):
        assert kiln_plan(model, (x,)) == kiln_snapshot

The plan is plain text, so fixtures of other snapshot plugins can take it as well. Nothing is
imported before a test asks for a plan.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path

import pytest


class Snapshot:
    """Compares equal to the text that is kept for a test, or ends the test with the difference.
    Each comparison of a test has a file."""

    def __init__(self, folder: Path, test: str, update: bool) -> None:
        self.folder, self.test, self.update = folder, test, update
        self.compared = 0

    def __eq__(self, other: object) -> bool:
        __tracebackhide__ = True
        if not isinstance(other, str):
            return NotImplemented
        number = f"-{self.compared}" if self.compared else ""
        self.compared += 1
        file = self.folder / f"{self.test}{number}.txt"
        if self.update:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(other, encoding="utf-8")
            return True
        if not file.exists():
            return self._fail([f"there is no {file}: write it by `pytest --kiln-update`", other])
        kept = file.read_text(encoding="utf-8")
        if kept == other:
            return True
        old, new = kept.splitlines(), other.splitlines()
        difference = list(difflib.unified_diff(old, new, str(file), "now", lineterm="", n=1))
        return self._fail(
            [*difference, "the plan changed: if that is meant, `pytest --kiln-update`"]
        )

    def _fail(self, problem: list[str]) -> bool:
        """Ends the test with the difference. Of an explanation of `==` pytest shows a few lines."""
        __tracebackhide__ = True
        raise AssertionError("\n".join(["", *problem]))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"kiln_snapshot({self.test})"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kiln")
    text = "write the plans that tests compare with kiln_snapshot"
    group.addoption("--kiln-update", action="store_true", default=False, help=text)


@pytest.fixture
def kiln_plan() -> Callable[..., str]:
    """The plan of a model as stable text: `kiln_plan(model, args)`."""
    import kiln

    return kiln.snapshot


@pytest.fixture
def kiln_snapshot(request: pytest.FixtureRequest) -> Snapshot:
    """Compares equal to the text that is kept beside the test."""
    file = Path(str(request.node.path))
    name = re.sub(r"[^\w.\-\[\]]", "_", request.node.name)
    update = bool(request.config.getoption("--kiln-update"))
    return Snapshot(file.parent / "__kiln__" / file.stem, name, update)
