"""Times of configurations that are stored on disk, by the kernel's text, the machine and the key."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from kiln import _native
from kiln.kernels.config import Config

#: Milliseconds: the median, the fifth and four fifths; or why there are none.
Outcome = list[float] | str


@dataclass(frozen=True)
class StoredKey:
    """Where times are stored; the machine and the version of Kiln are part of it, too."""

    name: str
    digest: str
    arguments: str
    on_gpu: bool
    device: int


@dataclass
class Stored:
    """What was measured before: by the text of the configuration."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    pinned: str | None = None

    @staticmethod
    def find(key: StoredKey) -> Stored:
        """The times of a key; nothing without a cache."""
        text = _native.find_kernel_times(key)
        if text is None:
            return Stored()
        entry = json.loads(text)
        outcomes = {row["configuration"]: _outcome(row["measured"]) for row in entry["configurations"]}
        return Stored(outcomes, entry.get("pinned"))


def store(key: StoredKey, outcomes: dict[Config, Outcome]) -> None:
    """Adds times to those that are stored."""
    rows = [{"configuration": str(config), "measured": _row(found)} for config, found in outcomes.items()]
    if rows:
        _native.add_kernel_times(key, json.dumps(rows))


def _outcome(measured: dict[str, Any]) -> Outcome:
    if "failed" in measured:
        return str(measured["failed"])
    us = measured["us"]
    return [1e-3 * us[name] for name in ("median", "low", "high")]


def _row(found: Outcome) -> dict[str, Any]:
    if isinstance(found, str):
        return {"failed": found}
    names = zip(("median", "low", "high"), found, strict=True)
    # Further digits are noise.
    return {"us": {name: round(1e3 * ms, 3) for name, ms in names}}
