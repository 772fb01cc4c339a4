"""`kiln.load`: artifacts (`.kiln`), programs of torch.export (`.pt2`) and text graphs, from a file.

The native module reads all of them; torch.export is not needed. Of a `.pt2` the nesting of inputs
and results is read here, from the description of the call that the archive has.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kiln import _native
from kiln import options as known_options
from kiln._native import KilnError, UsageError
from kiln.api.compiled import Compiled
from kiln.lowering import complex_tensors
from kiln.lowering.call_spec import CallSpec


def load(
    path: str | os.PathLike[str],
    *,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """Opens a file as a callable.

    A `.pt2` is called as its module was; everything else takes its inputs by position, flat, and
    gives one tensor or a tuple. `device`: `cpu`, or `cuda:0` and the like; without it, where a
    `.pt2` was exported if this machine has such a device, else `cpu`.

    >>> import tempfile, torch, kiln
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kiln.compile(torch.nn.ReLU().eval(), (torch.ones(3),)).save(folder + "/relu.kiln")
    ...     kiln.load(folder + "/relu.kiln")(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0., 0., 1.])
    """
    file = Path(path)
    program = _program(file)
    device = device or _exported_on(program)
    given = known_options.check(options, backend=False)
    if given.get("while_compiling") == "eager":
        raise UsageError(
            "while_compiling='eager' runs the module meanwhile, which a file does not have: leave "
            "the option out"
        )
    try:
        engine = _native.open(os.fspath(file), known_options.for_engine(given, device))
    except KilnError as error:
        raise _advised(file, error) from None
    in_spec, out_spec = _nesting(program)
    engine = complex_tensors.wrapped(engine, *_complex(program))
    return Compiled(engine, CallSpec(file.name, device, in_spec, out_spec, state=None))


#: The numbers of complex64 and complex128 in a `.pt2`.
_COMPLEX = (10, 11)


def _advised(file: Path, error: KilnError) -> KilnError:
    """Adds to an error of the native module what to do in Python. Its own advice is for the
    command, which also reads TorchScript archives."""
    what, _, remedy = str(error).partition(";")
    if "jit" not in remedy and "TorchScript" not in what:
        return error
    compiled = "    compiled = kiln.compile(model, example_inputs)"
    if "(a state_dict)" in what:
        steps = [
            "build the model, give it these weights, and compile it:",
            f"    model.load_state_dict(torch.load({str(file)!r}))",
            "    model.eval()",
            compiled,
        ]
    elif "a pickled module" in what:
        steps = [
            "load it where its class can be imported, and compile it:",
            f"    model = torch.load({str(file)!r}, weights_only=False)  # runs code of the file",
            "    model.eval()",
            compiled,
        ]
    elif "holds a TorchScript archive" in what:
        steps = [
            "compile the module that it was made of, or compile the archive by the command "
            "(`kiln compile`) and load the artifact",
        ]
    else:
        what = what.replace("neither a TorchScript archive nor a Kiln file", "no file of Kiln's")
        steps = [
            "give a program of torch.export.save (.pt2), an artifact of Compiled.save (.kiln), or "
            "compile a module by kiln.compile(model, example_inputs)",
        ]
    return UsageError(f"{what}; " + "\n".join(steps))


def _program(file: Path) -> dict[str, Any]:
    """The program of a `.pt2` as torch.export describes it. Empty for other files and for broken
    ones; the engine says what is wrong with those."""
    if not zipfile.is_zipfile(file):
        return {}
    try:
        with zipfile.ZipFile(file) as archive:
            models = [n for n in archive.namelist() if n.endswith("models/model.json")]
            found = json.loads(archive.read(models[0])) if models else {}
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return {}
    return found if isinstance(found, dict) else {}


def _exported_on(program: dict[str, Any]) -> str:
    """The GPU that a program was exported on, if it is here; else `cpu`."""
    try:
        values = program["graph_module"]["graph"]["tensor_values"].values()
        devices = [(v["device"]["type"], v["device"].get("index") or 0) for v in values]
    except (KeyError, AttributeError, TypeError):
        return "cpu"
    index = next((i for kind, i in devices if kind == "cuda"), None)
    return "cpu" if index is None or index >= torch.cuda.device_count() else f"cuda:{index}"


def _complex(program: dict[str, Any]) -> tuple[bool, list[int]]:
    """Whether a `.pt2` takes complex tensors, and the positions of its results that are complex."""
    try:
        types = program["graph_module"]["graph"]["tensor_values"]
        signature = program["graph_module"]["signature"]
        inputs = [s["user_input"]["arg"] for s in signature["input_specs"] if "user_input" in s]
        outputs = [s["user_output"]["arg"] for s in signature["output_specs"] if "user_output" in s]

        def are_complex(arguments: list[dict[str, Any]]) -> list[bool]:
            names = [a.get("as_tensor", {}).get("name") for a in arguments]
            return [types.get(name, {}).get("dtype") in _COMPLEX for name in names]

        complex_inputs, complex_outputs = are_complex(inputs), are_complex(outputs)
    except (KeyError, AttributeError, TypeError):
        return False, []
    return any(complex_inputs), [i for i, is_complex in enumerate(complex_outputs) if is_complex]


def _nesting(
    program: dict[str, Any],
) -> tuple[pytree.TreeSpec | None, pytree.TreeSpec | None]:
    """How a `.pt2` nests the inputs and results of its module; None where that is not known
    here."""
    try:
        signature = program["graph_module"]["module_call_graph"][0]["signature"]
        in_spec = pytree.treespec_loads(signature["in_spec"])
        return in_spec, pytree.treespec_loads(signature["out_spec"])
    except (KeyError, IndexError, TypeError, ValueError, NotImplementedError):
        # A class that is not registered in this process, as when its library was not imported.
        return None, None
