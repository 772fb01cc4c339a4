"""Which modules of the package import which: between folders one way, and nowhere in a circle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kiln

PACKAGE = Path(kiln.__file__).parent

#: The folders, the lowest first: each may import from those before it, and from single files of the
#: package, which import from none of them.
FOLDERS = ("language", "testing", "kernels", "tracing", "lowering", "reports", "api")
#: The files that may import from every folder: they give users the names of the package.
ENTRIES = ("kiln", "kiln.pytest_plugin")


def modules(package: Path = PACKAGE) -> dict[str, str]:
    """The source of each module, by its name."""
    found = {}
    for file in package.rglob("*.py"):
        parts = ["kiln", *file.relative_to(package).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file.read_text()
    return found


def imports(source: str, known: set[str], *, at_start: bool) -> set[str]:
    """The modules of the package that a source imports; `at_start`: as it is imported itself, and
    not in a function or for types alone."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            later = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            later |= isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            if at_start and later:
                continue
            if isinstance(child, ast.Import):
                found.update(name.name for name in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, "imports name the whole path"
                for name in child.names:
                    inner = f"{child.module}.{name.name}"
                    found.add(inner if inner in known else str(child.module))
            visit(child)

    visit(ast.parse(source))
    return found & known


def folder(module: str) -> str:
    """The folder of a module; empty for single files of the package."""
    part = module.split(".")[1] if "." in module else ""
    return part if part in FOLDERS else ""


def backward(sources: dict[str, str]) -> list[tuple[str, str]]:
    """The imports that run against the order of the folders, wherever in a file they are."""
    rank = {"": -1, **{name: i for i, name in enumerate(FOLDERS)}}
    return [
        (module, used)
        for module, source in sources.items()
        if module not in ENTRIES
        for used in sorted(imports(source, {*sources}, at_start=False) - {"kiln"})
        if rank[folder(used)] > rank[folder(module)]
    ]


def circle(sources: dict[str, str]) -> list[str]:
    """A circle of modules that import each other as they are imported, if there is one."""
    uses = {m: imports(s, {*sources}, at_start=True) - {m} for m, s in sources.items()}
    done: set[str] = set()

    def search(module: str, path: list[str]) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        for used in sorted(uses[module]):
            found = search(used, [*path, module])
            if found:
                return found
        done.add(module)
        return []

    return next(filter(None, (search(module, []) for module in sources)), [])


def test_folders_import_one_way():
    assert {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()} == {*FOLDERS}
    assert backward(modules()) == []


def test_modules_import_in_no_circle():
    assert circle(modules()) == []


@pytest.mark.parametrize(
    ("module", "used", "indent"),
    [
        ("tracing.export", "lowering.views", ""),
        ("reports.report", "api.compiled", "def f():\n    "),
        ("lowering.runner", "api.backend", "if TYPE_CHECKING:\n    "),
        ("pieces", "tracing.sources", ""),
    ],
)
def test_an_arrow_against_the_order_is_found(module, used, indent):
    path, _, name = f"kiln.{used}".rpartition(".")
    for line in (f"from {path} import {name}", f"import kiln.{used}"):
        sources = modules()
        sources[f"kiln.{module}"] += f"\n{indent}{line}\n"
        assert backward(sources) == [(f"kiln.{module}", f"kiln.{used}")]


def test_a_circle_is_found():
    sources = modules()
    sources["kiln.tracing.schemas"] += "\nfrom kiln.tracing import op_kinds\n"
    assert {"kiln.tracing.schemas", "kiln.tracing.op_kinds"} <= {*circle(sources)}


def test_few_files_are_in_no_folder():
    single = [m for m in modules() if m.count(".") == 1 and not folder(m)]
    assert len(single) <= 6, single
