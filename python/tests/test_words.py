"""What Kiln says to users of Python: advice that works there, reasons, logs, what is missing."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import kiln
from kiln.api import backend
from kiln.reports import environment

X = torch.arange(12.0).reshape(3, 4) - 5


# Files


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layer = nn.Linear(4, 4).eval()
    torch.save(layer.state_dict(), "state_dict.pt")
    torch.save(layer, "module.pt")
    torch.save([1], "list.pt")
    (tmp_path / "model.onnx").write_bytes(b"\x08\x07 no graph")
    return layer


@pytest.mark.native
@pytest.mark.parametrize("name", ["state_dict.pt", "module.pt"])
def test_advice_for_weights_and_modules_works(files, name):
    with pytest.raises(kiln.UsageError, match="compile it:") as error:
        kiln.load(name)
    assert "jit" not in str(error.value)
    advice = [line.strip() for line in str(error.value).splitlines()[1:]]
    names = {"torch": torch, "kiln": kiln, "model": nn.Linear(4, 4), "example_inputs": (X,)}
    exec("\n".join(advice), names)
    torch.testing.assert_close(names["compiled"](X), files(X).detach())


@pytest.mark.native
@pytest.mark.parametrize("name", ["list.pt", "model.onnx"])
def test_other_files_are_answered_without_torchscript(files, name):
    with pytest.raises(kiln.KilnError, match=r"\.pt2.*kiln.compile\(model") as error:
        kiln.load(name)
    assert "jit" not in str(error.value) and "TorchScript" not in str(error.value)


# Reports


class TwoPieces(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.down(self.up(x).sigmoid().bernoulli())


@pytest.mark.native
def test_why_of_names_in_two_pieces_and_of_none():
    report = kiln.compile(TwoPieces().eval(), (X,)).explain()
    text = report.why("up", "down")
    assert text.startswith("up is in piece 0, down in piece 2: no kernel has parts of both.")
    assert "between them: piece 1" in text and "random numbers" in text
    for a, b in (("nothing", "down"), ("down", "nothing")):
        with pytest.raises(kiln.UsageError, match="is called `nothing`"):
            report.why(a, b)


@pytest.mark.native
def test_why_of_pieces_of_dynamo_names_the_break():
    def f(x):
        y = x.relu() * 2
        torch._dynamo.graph_break()
        return y.sin()

    text = kiln.explain(f, X).why("op:relu", "op:sin")
    assert "op:relu is in piece 0, op:sin in piece 1" in text and "between them: " in text


def test_why_of_names_that_overlap():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2)).eval()
    report = kiln.compile(model, (X,)).explain()
    with pytest.raises(kiln.UsageError, match=r"`0.1` is a part of `0`: name two parts"):
        report.why("0.1", "0")
    with pytest.raises(kiln.UsageError, match=r"both names are `1`: name two parts"):
        report.why_not("1", "1")


@pytest.mark.native
def test_reports_name_what_python_has():
    report = kiln.compile(nn.ReLU().eval(), (X,)).explain()
    for text in (str(report), str(kiln.explain(torch.relu, X))):
        assert "--" not in text and "report.why(a, b)" in text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.native
def test_a_module_in_training_mode_was_not_saved():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).train()
    (part,) = kiln.compile(model, (X,)).explain().eager
    with torch.no_grad():
        (piece,) = kiln.explain(model, X).eager
    with pytest.raises(kiln.UnsupportedError) as error:
        kiln.compile(model, (X,), options={"fallback": "error"})
    for text in (part.reason, piece.reason, str(error.value)):
        assert "the module is in training mode" in text and "saved" not in text


@pytest.mark.parametrize("gradients", [False, True])
def test_modes_of_torch_alone(gradients):
    layer = nn.Linear(4, 4)

    def compiled(mode):
        return torch.compile(layer, backend=lambda gm, x: backend.kiln(gm, x, mode=mode))

    with torch.set_grad_enabled(gradients):
        text = "unknown mode 'max-autotun' of torch.compile: did you mean 'max-autotune'"
        with pytest.raises(kiln.UsageError, match=text):
            compiled("max-autotun")(X)
    with torch.no_grad():
        for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
            torch.testing.assert_close(compiled(mode)(X), layer(X))


# Logs


@pytest.mark.native
def test_plans_are_logged_for_who_asks(caplog):
    with caplog.at_level(logging.DEBUG, "kiln"), torch.no_grad():
        run = torch.compile(lambda x: x.relu() * 2, backend="kiln")
        run(X), run(X)
        kiln.compile(lambda x: x.sin() + 2, (X,))
    said = [r.getMessage() for r in caplog.records if r.name == "kiln"]
    assert sum('plan "forward"' in text and "relu" in text for text in said) == 1
    assert any("Compiled(lambda, cpu)" in text and "sin" in text for text in said)
    caplog.clear()
    with torch.no_grad():
        torch.compile(lambda x: x.relu() * 3, backend="kiln")(X)
    assert not [r for r in caplog.records if r.name == "kiln"]


@pytest.mark.native
def test_torchs_switch_of_logs_is_kilns():
    code = """
import torch
with torch.no_grad():
    torch.compile(lambda x: x.relu() * 2, backend="kiln")(torch.ones(3))
"""
    env = {**os.environ, "TORCH_LOGS": "+kiln"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert 'plan "forward"' in run.stderr and "relu" in run.stderr


# The environment


def test_doctor_ends_with_what_is_missing(monkeypatch):
    def version(name):
        if name == "transformers":
            raise environment.metadata.PackageNotFoundError(name)
        return {"torch": "2.7.1+cpu"}.get(name, "9.0")

    monkeypatch.setattr(environment.metadata, "version", version)
    monkeypatch.setattr(environment.metadata, "entry_points", lambda **_: [])
    missing = kiln.doctor().partition("missing in this environment:\n")[2].splitlines()
    assert [line.strip().partition(";")[0] for line in missing] == [
        "torch 2.7.1+cpu is older than 2.8",
        "transformers: for kiln.compile(model, max_length=...)",
        "the wheel of kiln: torch.compile does not know the backend by its name",
    ]


def test_doctor_names_a_backend_that_can_be_imported(monkeypatch):
    monkeypatch.setattr(environment.metadata, "entry_points", lambda **_: [])
    _, _, advice = kiln.doctor().partition("pass the backend itself: ")
    names = {"torch": torch, "model": nn.ReLU()}
    exec(advice.splitlines()[0], names)
    assert names["kiln"] is backend.kiln


@pytest.mark.native
def test_doctor_says_nothing_of_what_the_package_has_no_use_for():
    text = kiln.doctor()
    assert "libkiln_torchscript" not in text and "--device" not in text and "cargo" not in text
