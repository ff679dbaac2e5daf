"""The arrows of the package run one way, nothing below the command line prints, and no file grows too long."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "more_cli"
MODULES = sorted(PACKAGE.rglob("*.py"))
LAYERS = [
    ["errors", "clock", "progress", "system", "text"],
    ["files"],
    ["recipe", "core"],
    ["inputs"],
    ["checkpoint"],
    ["store", "suites"],
    ["model"],
    ["editors"],
    ["evaluation"],
    ["ops"],
    ["bench", "experiments"],
    ["demo", "render"],
    ["api"],
    ["review"],
    ["cli"],
    ["__main__"],
]
"""Rooms from the lowest to the highest; rooms on one line do not import each other."""
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
HEAVY = {"torch", "transformers", "numpy", "pydantic", "PIL", "safetensors", "rich"}


def imports(tree: ast.AST, *, top_level: bool = False) -> Iterator[str]:
    nodes = tree.body if top_level else ast.walk(tree)  # type: ignore[attr-defined]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module(path: Path) -> None:
    here = path.relative_to(PACKAGE).with_suffix("").parts[0]
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert len(text.splitlines()) <= 400, f"{path} is too long: split it along what it does"
    for module in imports(tree):
        if module.startswith("more_cli.") and here != "__init__":
            there = module.split(".")[1]
            assert there == here or RANK[there] < RANK[here], f"{path}: {here} must not import {there}"
        if module.split(".")[0] == "typer":
            assert here == "cli", f"{path}: only cli knows Typer"
        if module.split(".")[0] == "transformers":
            assert here == "model", f"{path}: only model knows transformers"
        if here == "core":
            assert module.split(".")[0] not in {"transformers", "pydantic", "PIL", "safetensors"}
        if module == "click" or module.startswith("click."):
            raise AssertionError(f"{path}: Typer carries its own click, ours would be another")
    if here in {"cli", "__main__"}:
        for module in imports(tree, top_level=True):
            assert module.split(".")[0] not in HEAVY, f"{path}: {module} makes --help slow"


def test_core_knows_torch_and_errors_only() -> None:
    for path in (PACKAGE / "core").glob("*.py"):
        for module in imports(ast.parse(path.read_text(encoding="utf-8"))):
            if module.startswith("more_cli."):
                assert module.split(".")[1] in {"core", "errors"}, f"{path} imports {module}"


def test_modules_import_each_other_in_no_circle() -> None:
    """Imports inside a function or for a type count too."""

    def name(path: Path) -> str:
        return ".".join(("more_cli", *path.relative_to(PACKAGE).with_suffix("").parts))

    names = {name(path) for path in MODULES}
    graph = {}
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        imported = {node.module or "" for node in nodes}
        imported |= {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
        graph[name(path)] = names & imported
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)
