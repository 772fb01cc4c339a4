"""`kiln.doctor`: what is installed, and what Kiln finds on this machine."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path

from kiln import _native


class Text(str):
    """Text that a prompt shows as it is printed.

    >>> Text("a b")
    a b
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def doctor() -> str:
    """Versions, the devices that torch has, whether `torch.compile` knows the backend, and what the
    native module finds.

    >>> import kiln
    >>> "torch" in kiln.doctor()
    True
    """
    lines = [
        f"kiln      {_native.__version__}  {Path(__file__).parent.parent}",
        f"python    {platform.python_version()}  {sys.executable}",
        *_torch(),
        f"backend   {_backend()}",
        "",
        *_engine(_native.doctor()),
    ]
    missing = _missing()
    if missing:
        lines += ["", "missing in this environment:", *(f"  {text}" for text in missing)]
    return Text("\n".join(lines))


def _engine(text: str) -> list[str]:
    """What the native module found, as far as it is about the package: archives of TorchScript,
    which need a libtorch of their own, are read by the command alone."""
    kept: list[str] = []
    left_out = False
    for line in text.rstrip().splitlines():
        if not line.startswith(" "):
            left_out = " libtorch " in line
        if not left_out:
            kept.append(line.replace("run with --device cpu", "compile for the CPU"))
    return kept


def _missing() -> list[str]:
    """What the package needs or can use and this environment does not have, and how to get it."""
    found = []
    for name, why in _PACKAGES.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            found.append(f"{name}: {why}; pip install '{name}'")
            continue
        if name == "torch" and tuple(map(int, version.split(".")[:2])) < (2, 8):
            found.append(f"torch {version} is older than 2.8; pip install 'torch>=2.8'")
    if not metadata.entry_points(group="torch_dynamo_backends", name="kiln"):
        found.append("the wheel of kiln: torch.compile does not know the backend by its name")
    return found


#: Packages, and what each is for.
_PACKAGES = {
    "torch": "nothing runs without it",
    "numpy": "torch warns without it",
    "pytest": "for the fixtures kiln_plan and kiln_snapshot",
    "transformers": "for kiln.compile(model, max_length=...)",
}


def _torch() -> list[str]:
    try:
        import torch
    except ImportError as error:
        return [f"torch     cannot be imported ({error}): pip install torch"]
    lines = [f"torch     {torch.__version__}  {Path(torch.__file__).parent}"]
    table = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    how = (
        "by DLPack's C table"
        if table
        else "by methods, which takes longer; newer torch has a table"
    )
    lines.append(f"tensors   {how}")
    if not torch.cuda.is_available():
        built = (
            f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
        )
        lines.append(f"cuda      no device ({built})")
        return lines
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        lines.append(
            f"cuda:{i}    {properties.name}, sm_{properties.major}{properties.minor}, {memory}, "
            f"CUDA {torch.version.cuda}"
        )
    return lines


def _backend() -> str:
    found = metadata.entry_points(group="torch_dynamo_backends", name="kiln")
    if found:
        return f'torch.compile(model, backend="kiln") finds {next(iter(found)).value}'
    return (
        "not registered: install the wheel of kiln, or pass the backend itself: "
        "from kiln.api.backend import kiln; torch.compile(model, backend=kiln)"
    )
