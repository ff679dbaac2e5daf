"""The arrows of both packages run one way, and limits that keep functions and classes readable."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOL = [
    ["errors", "clock", "progress", "text", "options"],
    ["system"],
    ["files"],
    ["recipe", "core"],
    ["inputs"],
    ["checkpoint"],
    ["store", "suites"],
    ["model"],
    ["editors"],
    ["evaluation"],
    ["ops"],
    ["runner"],
    ["outputs"],
    ["demo", "render"],
    ["api"],
    ["review"],
    ["cli"],
    ["__main__"],
]
"""Rooms of `more_cli` from the lowest to the highest; rooms on one line do not import each other."""
LABORATORY = [
    ["editors", "suites", "figures"],
    ["experiments"],
    ["analyses", "sweep", "bench", "panel"],
    ["paper"],
    ["outputs"],
    ["render"],
    ["cli"],
]
"""Rooms of `more_lab`, likewise; each may import all of `more_cli`."""
ALONE = {"more_lab.paper.kit.run"}
"""Scripts that are copied to users and import nothing of ours."""
HEAVY = {"torch", "transformers", "numpy", "pydantic", "PIL", "safetensors", "rich"}

FLAT = {"more_cli.render.page.Page"}
"""Dataclasses with more fields: a page is the flat list of what a report can show."""


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax tree of every module of both packages, by its dotted name."""
    paths = [path for package in ("more_cli", "more_lab") for path in sorted((ROOT / package).rglob("*.py"))]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text(encoding="utf-8"))
        for path in paths
    }


def imports(tree: ast.Module, *, top_level: bool = False) -> Iterator[str]:
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def arrows() -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (module, its path, the path of what it imports) for every import of our own."""
    for name, tree in modules().items():
        for module in imports(tree):
            if module.split(".")[0] in ("more_cli", "more_lab"):
                yield name, name.split("."), module.split(".")


def test_the_tool_never_imports_the_laboratory() -> None:
    assert [name for name, here, there in arrows() if here[0] == "more_cli" and there[0] == "more_lab"] == []


def test_arrows_run_one_way() -> None:
    wrong = []
    for package, layers in (("more_cli", TOOL), ("more_lab", LABORATORY)):
        rank = {room: number for number, rooms in enumerate(layers) for room in rooms}
        inside = [arrow for arrow in arrows() if arrow[1][0] == arrow[2][0] == package and arrow[1][1] != "__init__"]
        for name, here, there in inside:
            if len(there) > 1 and here[1] != there[1] and rank[there[1]] >= rank[here[1]]:
                wrong.append(f"{name} imports {'.'.join(there)}")
    assert wrong == []


def test_core_knows_torch_and_errors_only() -> None:
    refused = {"transformers", "pydantic", "PIL", "safetensors"}
    for name, tree in modules().items():
        if name.startswith("more_cli.core."):
            found = {module for module in imports(tree) if module.split(".")[0] in refused}
            ours = {module.split(".")[1] for module in imports(tree) if module.startswith("more_cli.")}
            assert (found, ours <= {"core", "errors"}) == (set(), True), name


def test_only_cli_knows_typer_and_only_model_knows_transformers() -> None:
    owner = {"typer": "cli", "transformers": "model"}
    wrong = [
        f"{name} imports {module}"
        for name, tree in modules().items()
        for module in imports(tree)
        if (room := owner.get(module.split(".")[0])) and name.split(".")[1] != room and name not in ALONE
    ]
    assert wrong == []
    assert not [name for name, _, _ in arrows() if name in ALONE]


def test_nobody_imports_click() -> None:
    """Typer carries its own click; ours would be another, and `except click.X` would never match."""
    assert [name for name, tree in modules().items() if "click" in {each.split(".")[0] for each in imports(tree)}] == []


def test_help_loads_nothing_heavy() -> None:
    wrong = [
        f"{name} imports {module}"
        for name, tree in modules().items()
        if name.split(".")[1] in {"cli", "__main__"}
        for module in imports(tree, top_level=True)
        if module.split(".")[0] in HEAVY
    ]
    assert wrong == []


def test_modules_import_each_other_in_no_circle() -> None:
    """Imports inside a function or for a type count too."""
    graph = {}
    for name, tree in modules().items():
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        imported = {node.module or "" for node in nodes}
        imported |= {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
        graph[name] = modules().keys() & imported
    assert len(list(TopologicalSorter(graph).static_order())) == len(modules())


def test_dataclasses_stay_readable() -> None:
    """At most 12 fields. A pydantic model may have more: its fields are the keys of a file or of an output."""
    wrong = []
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list):
                hints = [ast.unparse(each.annotation) for each in node.body if isinstance(each, ast.AnnAssign)]
                count = sum(not hint.startswith("ClassVar") for hint in hints)
                if count > 12 and f"{name}.{node.name}" not in FLAT:
                    wrong.append(f"{name}.{node.name}: {count} fields")
    assert wrong == []


def test_functions_stay_readable() -> None:
    """At most 60 lines and 8 parameters; a command's parameters are its options."""
    wrong = []
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = len([each for each in taken if each.arg not in ("self", "cls")])
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > 60 or (count > 8 and name.split(".")[1] != "cli"):
                    wrong.append(f"{name}.{node.name}: {lines} lines, {count} parameters")
    assert wrong == []
