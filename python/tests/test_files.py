"""Files of compiled programs, and `Compiled.bench`."""

from __future__ import annotations

import time
import zipfile

import pytest
import torch
from sample_modules import Cache, Nested
from torch import nn

import kiln
from kiln.api import artifact
from kiln.reports import bench

X = torch.arange(12.0).reshape(3, 4) - 5


def test_an_artifact_is_loaded(tmp_path):
    layer = nn.Linear(4, 2).eval()
    compiled = kiln.compile(layer, (X,))
    compiled.save(tmp_path / "layer.kiln")
    loaded = kiln.load(tmp_path / "layer.kiln")
    torch.testing.assert_close(loaded(X), layer(X).detach())
    assert repr(loaded) == "Compiled(layer.kiln, cpu)"
    with pytest.raises(kiln.InputError, match="keywords x: give positions"):
        loaded(x=X)
    with pytest.raises(kiln.UsageError, match="no example inputs"):
        loaded.bench()
    with pytest.raises(kiln.UsageError, match="needs the module"):
        loaded.bench(X)


@pytest.mark.native
def test_a_program_of_torch_export_is_loaded_with_its_nesting(tmp_path):
    module = Nested().eval()
    with torch.no_grad():
        program = torch.export.export(module, (X,), {"more": {"a": [X]}})
    torch.export.save(program.run_decompositions({}), tmp_path / "nested.pt2")
    got = kiln.load(tmp_path / "nested.pt2")(X, more={"a": [X]})
    torch.testing.assert_close(got["pair"][0], (X + X).relu())


@pytest.mark.native
@pytest.mark.parametrize("kind", ["cache.pt2", "cache.kiln"])
def test_the_state_of_a_loaded_file_is_its_own(kind, tmp_path):
    module, reference = Cache().eval(), Cache().eval()
    reference.load_state_dict(module.state_dict())
    file = tmp_path / kind
    if kind.endswith("pt2"):
        with torch.no_grad():
            program = torch.export.export(module, (X[:1],), strict=True)
        torch.export.save(program.run_decompositions({}), file)
    else:
        kiln.compile(module, (X[:1],)).save(file)
    loaded = kiln.load(file)
    assert sorted(loaded.state) == ["cache", "length"]
    assert not loaded.state["cache"].any()
    with torch.no_grad():
        for row in range(2):
            x = X[row : row + 1]
            torch.testing.assert_close(loaded(x), reference(x))
    torch.testing.assert_close(loaded.state["cache"], reference.cache)
    assert (loaded.state["length"].item(), module.length.item()) == (2, 0)
    # What is written to it is what the next call starts from.
    loaded.state["length"].zero_()
    reference.length.zero_()
    with torch.no_grad():
        torch.testing.assert_close(loaded(X[:1]), reference(X[:1]))


@pytest.mark.native
@pytest.mark.parametrize("text", ["[1, 2", "[]", '{"graph_module": 3}', "\xff"])
def test_a_broken_archive_is_an_error_of_the_engine(text, tmp_path):
    with zipfile.ZipFile(tmp_path / "broken.pt2", "w") as archive:
        archive.writestr("m/archive_format", "pt2")
        archive.writestr("m/models/model.json", text.encode("latin-1"))
    with pytest.raises(kiln.KilnError):
        kiln.load(tmp_path / "broken.pt2")


def test_the_device_of_an_archive_is_that_of_its_export():
    def found(*devices):
        values = {str(i): {"device": d} for i, d in enumerate(devices)}
        return artifact._exported_on({"graph_module": {"graph": {"tensor_values": values}}})

    cpu, gpu = {"type": "cpu", "index": None}, {"type": "cuda", "index": 0}
    here = "cuda:0" if torch.cuda.is_available() else "cpu"
    assert [found(), found(cpu), found(cpu, gpu)] == ["cpu", "cpu", here]
    assert found({"type": "cuda", "index": 99}) == "cpu"
    assert artifact._exported_on({}) == "cpu"


def test_the_nesting_of_an_archive_is_read(tmp_path):
    with torch.no_grad():
        program = torch.export.export(Nested().eval(), (X,), {"more": {"a": [X]}})
    torch.export.save(program, tmp_path / "nested.pt2")
    in_spec, out_spec = artifact._nesting(artifact._program(tmp_path / "nested.pt2"))
    assert in_spec == program.call_spec.in_spec
    assert out_spec == program.call_spec.out_spec
    (tmp_path / "text").write_text("graph")
    assert artifact._nesting(artifact._program(tmp_path / "text")) == (None, None)


def test_bench_times_in_one_table():
    layer = nn.Linear(4, 2).eval()

    def double(x):
        return layer(x) * 2

    def broken(x):
        raise ValueError("no")

    compiled = kiln.compile(layer, (X,))
    table = compiled.bench(against=("eager", double, broken), repetitions=5)
    assert [row.name for row in table.rows] == ["kiln", "eager", "double", "broken"]
    first = table["kiln"]
    assert first.ratio == 1.0 and 0 < first.p10_ms <= first.median_ms <= first.p90_ms
    assert table["eager"].ratio == pytest.approx(table["eager"].median_ms / first.median_ms)
    assert table["broken"].error == "ValueError: no"
    assert "ValueError: no" in str(table)
    with pytest.raises(kiln.UsageError, match="'inductr': use one of eager"):
        compiled.bench(against=("inductr",))


def test_a_failure_of_what_is_timed_is_not_hidden():
    def broken():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        bench.measure({"a": broken}, (), {}, "cpu")


def test_bench_ends_in_time_and_shows_what_it_does(capsys):
    class Terminal:
        def __init__(self):
            self.text = ""

        def isatty(self):
            return True

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    def slow(x):
        time.sleep(0.02)
        return x

    started = time.perf_counter()
    table = bench.measure({"slow": slow}, (X,), {}, "cpu", repetitions=10**6, seconds=0.2)
    assert time.perf_counter() - started < 5
    assert table["slow"].median_ms >= 20
    shown = Terminal()
    with bench._Progress(shown) as progress:
        progress.tell("first call of slow")
        progress._ended.wait(1.5)
    assert "first call of slow (1 s)" in shown.text and shown.text.endswith("\r\x1b[K")
    # Where nobody looks, nothing is written.
    assert capsys.readouterr().err == ""
