"""The pages of rivals: each editor of others has one, each number a grid or a rule; rankings leave out who is weak."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from generator import rivals
from generator.rivals import rivals_pages, thinned
from more_cli.demo.files import demo_model_dir
from more_cli.editors.registry import EditorOptions, editor_names, entry_of
from more_lab.panel import editors, ranked
from more_lab.panel.table import FIVE, RESULTS, runs_of

WORDS = tomllib.loads((RESULTS / "rivals.toml").read_text(encoding="utf-8"))
RIVALS = WORDS["rival"]
PAGES = [rival["page"] for rival in RIVALS]


def test_every_editor_of_others_has_one_page() -> None:
    others = {name for name in editor_names() if name.partition(":")[0] not in ranked.OURS}
    listed = [editor for rival in RIVALS for editor in rival["editors"]]
    assert sorted(listed) == sorted(others)


@pytest.mark.parametrize("rival", RIVALS, ids=PAGES)
def test_every_number_has_a_grid_or_a_rule(rival: dict[str, Any]) -> None:
    entry = entry_of(rival["editors"][0])
    grid = {text.partition("=")[0] for setting in entry.tries for text in setting}
    constants = entry.make(EditorOptions(demo_model_dir())).constants()
    numbers = {key for key, value in constants.items() if isinstance(value, int | float) and type(value) is not bool}
    assert numbers - grid - {"seed"} == set(rival.get("rule", {}))


@pytest.mark.parametrize("rival", RIVALS, ids=PAGES)
def test_what_was_published_is_said_in_three_sentences_with_its_source(rival: dict[str, Any]) -> None:
    assert len(re.findall(r"[.!?](?:\s|$)", rival["published"].strip())) == 3
    assert rival["source"]
    assert rival["departure"]


def test_a_page_has_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = [[500 * n, 3.0 - n / 40] for n in range(1, 41)]
    facts = {"ended": "plateau", "iterations": 20_000, "of": 40_000, "curve": curve, "rate_fell_at": [9000]}
    found = {
        "base": "that of the embedded model",
        "suite": "e-vqa",
        "editor": "liveedit",
        "constants": entry_of("liveedit").make(EditorOptions(demo_model_dir())).constants(),
        "fit": {"records": 700, "facts": facts},
        "single": {label: [0.87, 0.79, 0.92, 100] for label in FIVE},
    }
    monkeypatch.setattr(rivals, "runs_of", lambda name: [found])
    pages = rivals_pages()
    page = pages["research/rivals/liveedit.md"]
    assert "87.0 (79.0-92.0)" in page
    assert "in no ranking" in page
    assert "20,000 iterations of at most 40,000; it ended by plateau. The rate fell to a tenth after 9,000." in page
    assert "those of iteration 20,000" in page
    assert page.count("| 20,000 | 2.000 |") == 1
    assert "| `liveedit` | 87.0 (79.0-92.0) | plateau at 20,000 | in no ranking |" in pages["research/rivals/index.md"]
    assert "Not measured alone: `grace`." in pages["research/rivals/grace.md"]


@pytest.mark.parametrize("count", [1, 12, 13, 40])
def test_a_long_curve_is_thinned_to_its_last_point(count: int) -> None:
    curve = list(range(count))
    found = thinned(curve)
    assert len(found) <= rivals.LONGEST
    assert found[-1] == curve[-1]
    assert found == sorted(set(found))


# --- rankings


def run_of(editor: str, right: int = 20, row: str = "") -> dict[str, Any]:
    fit = {"right": right, "held_out": 20, "undertrained": right < 18}
    constants = {"rate": 0.1} | ({"loop": {"margin": 2.0}} if editor.endswith(":loop") else {})
    run = {"base": "b", "suite": "e-vqa", "editor": editor, "fit": fit, "constants": constants}
    return run | ({"row": row} if row else {})


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"mend": (0.89, 0.81, 0.94, 100), "serac": (0.9, 0.83, 0.94, 100)}
    by_key = {ranked.key_of(run_of(editor)): rel for editor, rel in found.items()}
    monkeypatch.setattr(ranked, "singles", lambda: by_key)


@pytest.mark.usefixtures("alone")
def test_a_rival_that_learns_fewer_than_ninety_edits_alone_is_in_no_ranking_and_named() -> None:
    runs = [run_of("more:paper", 3), run_of("mend"), run_of("mend:loop", row="mend, loop"), run_of("serac")]
    runs += [run_of("serac", 17), run_of("grace", 16), run_of("ike", 18)]
    assert [run["editor"] for run in ranked.ranked(runs)] == ["more:paper", "serac", "ike"]
    said = "learns 89.0 (81.0-94.0) % of 100 edits alone"
    other = run_of("mend") | {"constants": {"rate": 0.3}}
    assert not ranked.obstacle(other), "with other constants it was not measured"
    assert ranked.left_out(runs) == (
        f"In no ranking: mend ({said}), mend, loop ({said}), serac (learns 17 of 20 edits alone), "
        "grace (learns 16 of 20 edits alone)."
    )


def test_tables_of_the_page_rank_no_such_rival_and_name_it() -> None:
    weak = {run["editor"] for run in runs_of(editors.RIVALS) if run["suite"] == "e-vqa" and ranked.obstacle(run)}
    assert weak
    runs = [run for run in runs_of(editors.RIVALS) if run["suite"] == "e-vqa"]
    for lines in (list(editors.table("t", runs, "final@100")), list(editors.differences("t", runs))):
        shown = {line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")}
        assert not weak & shown
        assert {run["editor"] for run in ranked.ranked(runs)} - shown <= {"more"}
    named = next(line for line in editors.table("t", runs, "final@100") if "In no ranking" in line)
    assert all(f"{editor} (" in named for editor in weak)
