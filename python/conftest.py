"""Settings of all tests: `--kiln-fake` runs them without the native module.

With it `tests/fake_native.py` stands in for the native module, which tests the Python side alone;
tests that need the compiler itself are skipped, as tests that need the stand-in are without it.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FAKE = "--kiln-fake" in sys.argv

sys.path.insert(0, str(HERE / "tests"))
if FAKE:
    sys.path.insert(0, str(HERE))
    import fake_native

    fake_native.install()

# The plugin is found by its entry point where the wheel is installed.
if not metadata.entry_points(group="pytest11", name="kiln"):
    pytest_plugins = ["kiln.pytest_plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "test the Python side with a stand-in for the native module"
    parser.addoption("--kiln-fake", action="store_true", default=False, help=text)
    text = "run the tests that take minutes as well"
    parser.addoption("--kiln-slow", action="store_true", default=False, help=text)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fake: looks into the stand-in for the native module")
    config.addinivalue_line("markers", "native: needs the native module")
    config.addinivalue_line("markers", "slow: takes minutes; runs with --kiln-slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wrong, why = ("native", "needs the native module") if FAKE else ("fake", "run --kiln-fake")
    left_out = {wrong: why}
    if not config.getoption("--kiln-slow"):
        left_out["slow"] = "run --kiln-slow"
    for item in items:
        for marker, reason in left_out.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Each test starts without compiled code, with the same random numbers."""
    import torch

    torch._dynamo.reset()
    torch.manual_seed(0)
    # A test that calls torch.export by itself, and fails there, leaves some behind.
    torch.nn.modules.module._global_buffer_registration_hooks.clear()
    from kiln.api import backend
    from kiln.tracing import dynamo_hooks

    # A reset forgets it.
    dynamo_hooks.install()
    if FAKE and "kiln" not in torch._dynamo.list_backends():
        torch._dynamo.register_backend(backend.kiln, name="kiln")
