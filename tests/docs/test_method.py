"""The method page: every function and test it names exists, and so does every equation of the paper's method."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from more_cli.recipe.files import load_recipe, shipped_recipes

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "method.md"
CODE = re.compile(r"`(more_cli/[\w/]+\.py)` `([\w.]+)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def names(path: str) -> set[str]:
    """Return the qualified names of every function, method and class of a file."""

    def walk(node: ast.AST, above: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                yield above + child.name
                yield from walk(child, f"{above}{child.name}.")

    return set(walk(ast.parse((ROOT / path).read_text(encoding="utf-8")), ""))


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_every_function_that_the_page_names_is_there() -> None:
    named = CODE.findall(page())
    assert len(named) > 25
    assert not [f"{path} {name}" for path, name in named if name not in names(path)]


def test_every_test_that_the_page_names_is_there() -> None:
    named = TEST.findall(page())
    assert len(named) > 25
    assert not [f"{path}::{name}" for path, name in named if name not in names(path)]


def test_every_row_of_a_table_names_code_and_a_test() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| ") and "`more_cli/" in line]
    assert len(rows) > 25
    assert not [row for row in rows if not TEST.search(row)]


def test_every_equation_of_the_method_section_is_on_the_page() -> None:
    for label in ("prox-proj-rgl", "lora", "freezeA", "z", "S-def", "proj-obj", "closedform", "sm-update"):
        assert f"Eq. {label}" in page() or f", {label}" in page(), label


def test_the_published_recipes_switch_the_additions_off() -> None:
    for name in shipped_recipes():
        if name.startswith(("paper-", "authors-")):
            recipe = load_recipe(name)
            assert not recipe.uses_polyak
            assert (recipe.visual_share, recipe.stop_early, recipe.halvings, recipe.conjugate) == (None, False, 0, 0.0)
            assert (recipe.rehearsal.size, recipe.anchors.used) == (0, bool(recipe.anchors.per_edit))
            assert recipe.max_write >= 1e9
            assert recipe.default.ridge_rel is None


def test_the_cap_of_the_first_projector_linear_is_not_what_its_reason_asks_for() -> None:
    d_in, d_out, rank = 1024, 4096, 512
    assert (round(rank * (d_in + d_out) / 1e6, 1), round(d_in * d_out / 1e6, 1)) == (2.6, 4.2)
    assert load_recipe("default").rank_at(d_in) == 256
