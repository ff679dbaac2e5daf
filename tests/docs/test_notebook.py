"""The notebook runs from top to bottom, and is stored without outputs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from support.paths import ROOT

NOTEBOOK = ROOT / "docs" / "python.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def test_it_is_small_and_has_no_outputs() -> None:
    assert NOTEBOOK.stat().st_size < 10_000
    assert [cell for cell in CODE if cell["outputs"] or cell["execution_count"]] == []


def test_one_click_opens_this_notebook_and_its_first_cell_installs_the_package() -> None:
    (link,) = re.findall(r"\]\((https://colab\.research\.google\.com/github/\S+)\)", "".join(CELLS[0]["source"]))
    repository, _, path = link.removeprefix("https://colab.research.google.com/github/").partition("/blob/main/")
    assert ROOT / path == NOTEBOOK
    assert f"git+https://github.com/{repository}" in "".join(CODE[0]["source"])
    assert repository in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "who releases it sets the address"


@pytest.mark.slow
def test_every_cell_runs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "notebook"}
    shown = {}
    for number, cell in enumerate(CODE, 1):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{NOTEBOOK.name}, cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):  # what a notebook shows below the cell
            shown[number] = eval(compile(ast.Expression(last.value), f"{NOTEBOOK.name}, cell {number}", "eval"), names)
    question, said, target = shown[2]
    assert said != target, f"the base answers {question!r} wrong"
    assert list(shown[3]["status"]) == ["learnt", "learnt"]
    assert list(shown[6]["status"]) == ["learnt", "reverted", "reverted"]
    assert shown[7] == 1, "edits in the merged checkpoint"
