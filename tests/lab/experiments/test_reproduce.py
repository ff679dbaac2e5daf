"""`more reproduce`: what the paper shows beside what runs measure, also after a run that was cut short."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from more_cli.runner import steps as run_steps
from more_lab.experiments.published import BACKBONES, published, table, tables
from more_lab.experiments.published import EDITORS as PAPER
from more_lab.paper.exhibits import exhibits
from support.helpers import Result, World, at_call, die, forks, in_child, run, stopped_at

PAPER_TEX = Path(__file__).parents[3] / "shared" / "paper" / "m-ore.tex"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A tiny LLaVA, and a folder with two edits of E-VQA and none of E-IC."""
    world = World(tmp_path_factory.mktemp("reproduce") / "world")
    world.mmedit(2)
    return world


def measure(world: World, cache: Path, *options: object) -> Result:
    where = "--data-root", world.root / "mmedit", "--image-root", world.root, "--cache", cache, "--dtype", "float32"
    return run("reproduce", "table-1", world.model, *where, "--checkpoints", "1,2", *options)


def test_measured_is_beside_printed_and_what_could_not_be_run_says_why(world: World, tmp_path: Path) -> None:
    result = measure(world, tmp_path, "--editor", "ft-m", "--editor", "none", "--json")
    assert result.code == 3
    assert result.err.endswith("error: not everything was measured\nhint: the lines `not run` say why\n")
    assert result.json["schema"] == "more.reproduce/1"
    (found,) = result.json["results"]
    assert (found["exhibit"], found["backbone"]) == ("table-1", "LLaVA-v1.5")
    rows = {(row["suite"], row["editor"], row["edits"]): row for row in found["rows"]}
    assert set(rows) == {(s, e, t) for s in ("e-vqa", "e-ic") for e in ("ft-m", "none") for t in (1, 2)}
    first = rows["e-vqa", "ft-m", 1]
    assert first["printed"] == {"Rel": 95.0, "T-Gen": 95.0, "M-Gen": 79.67, "T-Loc": 100.0, "M-Loc": 85.83, "Avg": 91.1}
    assert first["measured"]["T-Loc"]["value"] == 1.0, "text does not pass the projector"
    assert first["reason"] == ""
    assert (first["name"], first["protocol"]) == ("FT-M", "final")
    assert rows["e-vqa", "none", 1]["printed"] is None
    missing = rows["e-ic", "ft-m", 1]
    assert missing["measured"] is None
    assert "e-ic" in missing["reason"] or "caption" in missing["reason"]


def test_the_table_on_the_terminal(world: World, tmp_path: Path) -> None:
    shown = measure(world, tmp_path, "--editor", "ft-m", "--report", tmp_path / "table.md")
    assert shown.code == 3, shown.err
    lines = [line.split() for line in shown.out.splitlines()]
    (measured,) = [line for line in lines if line[:4] == ["FT-M", "(ft-m)", "1", "final"]]
    printed, difference = lines[lines.index(measured) + 1 :][:2]
    assert printed == ["printed", "95.0", "95.0", "79.7", "100.0", "85.8", "91.1"]
    expected = [f"{float(ours) - float(theirs):+.1f}" for ours, theirs in zip(measured[4:], printed[1:], strict=True)]
    for got, value in zip(difference[1:], expected, strict=True):
        assert abs(float(got) - float(value)) < 0.2, "each is rounded on its own"
    assert "not run: FT-M on e-ic: " in shown.out
    assert "ft-m" in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_what_the_paper_does_not_have_is_refused_by_name(world: World, tmp_path: Path) -> None:
    unknown = measure(world, tmp_path, "--editor", "ft-n")
    assert unknown.code == 2
    assert unknown.err.startswith("error: unknown editor `ft-n`\nhint: did you mean `ft-")
    wrong = run("reproduce", "table-2", world.model)
    refused = "error: the paper has no table or figure `table-2`\nhint: did you mean `table-1`?\n"
    assert (wrong.code, wrong.err) == (2, refused)
    nowhere = run("reproduce", "drift", world.model)
    refused = "error: `drift` has figures, and they need a folder\nhint: add --out DIR\n"
    assert (nowhere.code, nowhere.err) == (2, refused)
    wording = run("reproduce", "basis", world.model, "--prompts", "theirs")
    assert (wording.code, wording.err) == (2, "error: `--prompts theirs` is not a wording\nhint: use own or mmedit\n")
    alone = run("reproduce", "seeds", world.model, "--editor", "ft-m")
    refused = "error: no such run has an editor of ft-m\nhint: leave --editor out\n"
    assert (alone.code, alone.err) == (2, refused)


def test_no_edits_and_two_models_of_one_name_are_refused(world: World, tmp_path: Path) -> None:
    zero = run("reproduce", "table-1", world.model, "--checkpoints", "0,1")
    what = "error: `--checkpoints 0,1` is not a list of numbers from 1 to 1,000,000"
    refused = f"{what}\nhint: for example --checkpoints 1,10,100\n"
    assert (zero.code, zero.out, zero.err) == (2, "", refused)
    (tmp_path / world.model.name).symlink_to(world.model)
    twice = run("reproduce", "table-1", world.model, tmp_path / world.model.name)
    assert (twice.code, twice.out) == (2, "")
    assert f"error: two models are called `{world.model.name}`" in twice.err


def test_everything_that_the_paper_measures_is_listed_once(world: World) -> None:
    listed = run("reproduce", "--json").json
    assert listed["schema"] == "more.exhibits/1"
    assert [each["name"] for each in listed["exhibits"]] == list(exhibits())
    assert "flip" in run("reproduce").out
    for exhibit in exhibits().values():
        assert set(exhibit.backbones) <= set(BACKBONES.values()), exhibit.name
        assert exhibit.analyses or exhibit.printed in tables(), f"{exhibit.name} has neither figures nor printed rows"
    labels = [label for exhibit in exhibits().values() for label in exhibit.labels]
    assert len(labels) == len(set(labels))


@pytest.mark.skipif(not PAPER_TEX.exists(), reason="the paper is not here")
def test_no_table_or_figure_of_the_paper_is_left_out() -> None:
    labels = set(re.findall(r"\\label\{((?:tab|fig):[^}]+)\}", PAPER_TEX.read_text(encoding="utf-8")))
    assert labels - {label for exhibit in exhibits().values() for label in exhibit.labels} == {"fig:intro"}, "drawn"


def test_each_variant_of_a_table_is_a_run_with_its_own_settings(world: World, tmp_path: Path) -> None:
    records = (world.root / "mmedit" / "vqa_eval.json").read_bytes()
    (tmp_path / "caption_eval_edit.json").write_bytes(records)
    (tmp_path / "caption_train_edit.json").write_bytes(records)
    where = "--data-root", tmp_path, "--image-root", world.root, "--cache", tmp_path / "cache", "--dtype", "float32"
    result = run("reproduce", "basis", world.model, *where, "--checkpoints", "1", "--prompts", "mmedit", "--json")
    (found,) = result.json["results"]
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == ["Gaussian", "Xavier", "data-driven", "orthogonal"]
    assert rows["Gaussian"]["printed"]["Rel"] == 76.47
    assert {row["protocol"] for row in rows.values()} == {"online"}
    measured = {name: row["measured"] for name, row in rows.items() if row["measured"]}
    assert {"Gaussian", "Xavier", "orthogonal"} <= measured.keys()
    assert measured["Gaussian"] != measured["orthogonal"]


def test_a_figure_is_drawn_on_the_model_that_is_there_and_the_page_says_so(world: World, tmp_path: Path) -> None:
    where = "--data-root", world.root / "mmedit", "--image-root", world.root, "--cache", tmp_path / "cache"
    out = tmp_path / "paper"
    options = "--checkpoints", "1,2", "--dtype", "float32", "-o", out

    def drawn(*others: object) -> Result:
        return run("reproduce", "flips", world.model, *where, *options, *others)

    shown = drawn("--json")
    (found,) = shown.json["results"]
    assert [figure["suite"] for figure in found["figures"]] == ["e-vqa"], "there are no captions"
    assert found["printed"][1]["values"]["margin before"] == 2.46
    assert any(problem.startswith("M-ORE on e-ic: ") for problem in found["problems"])
    assert shown.code == 3
    for file in found["figures"][0]["files"]:
        assert Path(file).is_file()
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "Stable and flipped locality answers" in page
    assert "<script" not in page
    assert drawn("--json").out == shown.out, "nothing is run twice"
    other = shutil.copytree(world.model, tmp_path / "other")
    both = run("reproduce", "flips", world.model, other, *where, *options, "--json").json["results"]
    assert [Path(each["model"]).name for each in both] == [world.model.name, "other"]
    assert all(each["figures"] for each in both), "each model has runs of its own"
    moved = run("reproduce", "scales", world.model, "-o", out, "--checkpoints", "1", "--cache", tmp_path / "cache")
    assert "the paper shows this on Qwen2-VL, Qwen3-VL; here it is" in moved.err


def test_a_folder_of_something_else_is_refused_and_an_own_one_continues(world: World, tmp_path: Path) -> None:
    mine, own = tmp_path / "mine", tmp_path / "own"
    mine.mkdir()
    (mine / "index.html").write_text("my site")
    (mine / "index.md").write_text("# my site\n")
    refused = measure(world, tmp_path, "--editor", "none", "-o", mine)
    assert (refused.code, refused.out) == (2, "")
    said = f"error: `{mine}` is not empty and holds no tables or figures of the paper\n"
    assert refused.err == f"{said}hint: name an empty folder with -o\n"
    assert (mine / "index.html").read_text() == "my site"
    first = measure(world, tmp_path, "--editor", "none", "-o", own, "--json")
    assert (own / "index.md").is_file()
    (own / "notes.txt").write_text("beside the page")
    again = measure(world, tmp_path, "--editor", "none", "-o", own, "--json")
    assert (first.code, again.code, again.out) == (3, 3, first.out)
    for name in ("index.html", "index.md"):
        (own / name).unlink()
    (own / "flips").mkdir()  # a figure whose first run was interrupted: there is no page yet
    assert measure(world, tmp_path, "--editor", "none", "-o", own).code == 3


def test_what_mme_lacks_stops_no_other_figure(world: World, tmp_path: Path) -> None:
    where = "--data-root", world.root / "mmedit", "--image-root", world.root, "--cache", tmp_path / "cache"
    options = "--checkpoints", "1", "--dtype", "float32", "-o", tmp_path / "out", "--editor", "none"
    shown = run("reproduce", "abilities", world.model, *where, *options, "--mme", tmp_path)
    assert shown.code == 4
    assert "holds no questions of mme" in shown.err.splitlines()[0]


def test_where_nothing_can_be_run_the_command_fails_with_the_first_reason(world: World, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    result = run("reproduce", "table-1", world.model, "--data-root", nowhere, "--editor", "none", "--checkpoints", "1")
    assert result.code == 4
    assert str(nowhere) in result.err.splitlines()[0]
    assert result.out == ""
    later = measure(world, tmp_path, "--editor", "none", "--editor", "ike", "--json")
    assert later.code == 3
    reasons = {
        row["reason"] for row in later.json["results"][0]["rows"] if (row["suite"], row["editor"]) == ("e-vqa", "ike")
    }
    assert reasons == {"suite `e-vqa` has 2 calibration edits, and editor `ike` is fitted on those after the first 20"}


@forks
@pytest.mark.parametrize("killed", [False, True])
def test_a_run_that_was_cut_short_ends_with_the_same_bytes(world: World, tmp_path: Path, killed: bool) -> None:
    options = "--editor", "ft-m", "--editor", "ft-l", "--json"

    def start() -> Result:
        return measure(world, tmp_path / "cut", *options)

    def until_killed() -> Result:
        at_call(4, [(run_steps.Run, "_edited")], die)
        return start()

    code = in_child(until_killed) if killed else stopped_at(4, run_steps.Run, "_edited", start)
    assert code == (-9 if killed else 130), "before the last of four edits"
    assert start().out == measure(world, tmp_path / "whole", *options).out


def test_the_paper_prints_48_rows(world: World) -> None:
    rows = table("table-1")
    assert len({(row.backbone, row.name, row.edits) for row in rows}) == 48
    assert {row.name for row in rows} == set(PAPER)
    assert len(rows) == 96, "two suites each"
    for row in rows:
        mean = sum(value for name, value in row.values.items() if name != "Avg") / 5
        assert abs(mean - row.values["Avg"]) < 0.6, row
    assert "source" in json.dumps(published())
    assert {"table-1", "ablation"} < set(tables())


@pytest.mark.skipif(not PAPER_TEX.exists(), reason="the paper is not here")
def test_the_rows_are_those_of_the_paper() -> None:
    text = PAPER_TEX.read_text(encoding="utf-8")
    for row in table("table-1"):
        for value in row.values.values():
            assert f"{value:.2f}" in text, row
