"""`eval --keep` and `analyze`: what a run keeps, and the tables and figures that are made of it."""

from __future__ import annotations

import csv
import json
import shutil
from importlib.util import find_spec as real_find_spec
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from safetensors.torch import load_file, save_file

from more_cli.inputs.edits import read_edits
from more_cli.model.batches import Query
from more_cli.model.machine import Machine
from more_cli.progress import no_progress
from more_cli.runner.journal import RunJournal
from more_lab.analyses import figures
from more_lab.analyses.kept import KeptRun
from more_lab.analyses.scales import load_base
from more_lab.figures import PALETTE
from support.helpers import World, forks, line, run, stopped_at, tree

ASKED = [
    {"question": "is it a dog ?", "answer": "no"},
    {"question": "what is in the image ?", "image": "img/black.png"},
]
ALL_LAGS = ("--protocol", "final", "--protocol", "online", "--protocol", "lag", "--lags", "1-3")
EVERYTHING = ("--keep-updates", "--keep-states", "--checkpoints", "1,2", *ALL_LAGS)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four edits with probes on a tiny model, an MME of one category, and two kept runs."""
    world = World(tmp_path_factory.mktemp("analyze") / "world")
    world.write([line(n, rephrases=["which colour ?"], locality=ASKED) for n in range(4)])
    folder = world.root / "mme" / "color"
    folder.mkdir(parents=True)
    for colour in ("red", "green"):
        Image.new("RGB", (28, 28), colour).save(folder / f"{colour}.png")
        (folder / f"{colour}.txt").write_text(f"is it {colour} ?\tYes\nis it black ?\tNo\n")
    questions = ("--keep-answers", f"mme={world.root / 'mme'}")
    for editor, options in {"more": ("--set", "max_steps=3", *questions), "ft-l": ("--set", "steps=3")}.items():
        result = keep(world, editor, "--editor", editor, *options, *EVERYTHING)
        assert result.code == 0, result.err
    return world


def keep(world: World, name: str, *options: object):
    where = "--keep", world.root / name, "--cache", world.root / "cache", "--dtype", "float32"
    return run("run", world.model, "--suite", world.root / "edits.jsonl", *where, *options)


def analyze(world: World, name: str, *runs: str, out: str = "out", options: tuple[str, ...] = ()):
    kept = [word for one in runs for word in ("--run", world.root / one)]
    return run("analyze", name, *kept, "--out", world.root / out, *options)


def rows(world: World, name: str, out: str = "out") -> list[dict[str, str]]:
    with open(world.root / out / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_the_analyses_are_listed_and_names_are_checked() -> None:
    listed = run("analyze")
    assert listed.code == 0
    assert "overlap" in listed.out
    assert "--keep-updates" in listed.out
    wrong = run("analyze", "overlp", "--run", "x", "--out", "y")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err == "error: unknown analysis `overlp`\nhint: did you mean `overlap`?\n"
    assert "needs --run DIR" in run("analyze", "overlap").err
    twice = run("analyze", "forgetting", "--run", "x", "--run", "x", "--out", "y", "--no-figures")
    assert (twice.code, twice.err) == (2, "error: `x` is named twice\nhint: give each run once\n")


@pytest.mark.parametrize("editor", ["more", "ft-l"])
def test_the_updates_of_a_run_add_up_to_what_the_editor_became(world: World, editor: str) -> None:
    kept = KeptRun(world.root / editor)
    assert len(kept.updates) == 4
    base = load_base(kept, Machine(dtype="float32"), no_progress)
    total: dict[str, torch.Tensor] = {}
    for update in kept.updates:
        for path, change in update.items():
            total[path] = total.get(path, 0) + change.dense()
    assert total
    state = load_file(world.root / editor / "state.safetensors")
    if editor == "ft-l":
        ((path, found),) = total.items()
        assert torch.allclose(base.model.get_submodule(path).weight + found, state[f"{path}.weight"], atol=1e-5)
    else:
        shared = load_file(world.root / editor / "right.safetensors")
        written = {name.removesuffix(".B") for name, value in state.items() if name.endswith(".B") and value.any()}
        assert len(total) == len(written)
        assert all(torch.linalg.matrix_rank(found) <= len(shared[path]) for path, found in total.items())


def test_the_updates_of_an_editor_that_trains_both_factors_add_up(world: World) -> None:
    options = ("--editor", "lora", "--set", "steps=2", "--set", "stop=1", "--keep-updates", "--limit", "3")
    assert keep(world, "lora", *options).code == 0
    state = load_file(world.root / "lora" / "state.safetensors")
    found = KeptRun(world.root / "lora").updates
    paths = {path for update in found for path in update}
    assert paths
    for path in paths:
        total = sum(update[path].dense() for update in found if path in update)
        A, B = (state[f"{path}.lora_{half}.weight"] for half in "AB")
        assert torch.allclose(total, 2 * B @ A, atol=1e-6), "alpha over rank is 2"


@pytest.mark.slow
def test_all_analyses_of_two_runs_make_tables_figures_and_a_page(world: World) -> None:
    result = analyze(world, "all", "more", "ft-l")
    assert result.code == 0, result.err
    assert "skipped in part: capability: " in result.out
    assert {row["run"] for row in rows(world, "capability")} == {"more"}
    out = world.root / "out"
    names = {path.stem for path in out.glob("*.csv")}
    assert {"overlap", "cosine", "horizon", "forgetting", "efficiency", "capability", "sensitivity"} <= names
    assert {"variance", "energy", "drift", "flips", "rollout"} <= names
    assert names == {path.stem for path in out.glob("*.png")} == {path.stem for path in out.glob("*.svg")}
    page = (out / "index.html").read_text()
    assert page.count("data:image/png;base64,") == len(names)
    assert "more: mean cosine of two edits" in result.out
    assert f"page: {out / 'index.html'}" in result.out
    before = tree(out)
    assert analyze(world, "cosine", "more", "ft-l").code == 0
    again = tree(out)
    assert {name: again[name] for name in again if name.startswith("cosine")} == {
        name: before[name] for name in before if name.startswith("cosine")
    }, "the same numbers give the same bytes"


def test_tables_have_what_the_run_measured(world: World) -> None:
    assert analyze(world, "forgetting", "more", out="tables", options=("--no-figures",)).code == 0
    assert {path.name for path in (world.root / "tables").iterdir()} == {"forgetting.csv"}
    table = rows(world, "forgetting", "tables")
    assert len(table) == 10, "every t >= i of four edits"
    lines = [json.loads(text) for text in (world.root / "more" / "lines.jsonl").read_text().splitlines()]
    for row in table:
        scores = lines[int(row["after t edits"]) - 1]["scores"][row["edit i"]]
        assert float(row["tf_token_acc"]) == scores[0]["values"]["tf_token_acc"]
    assert analyze(world, "capability", "more", out="tables", options=("--no-figures",)).code == 0
    assert [row["edits"] for row in rows(world, "capability", "tables")] == ["0", "1", "2", "4"]
    assert analyze(world, "drift", "ft-l", out="tables", options=("--no-figures",)).code == 0
    first = rows(world, "drift", "tables")[0]
    assert (first["edits"], first["linear CKA"]) == ("0", "1.0")


def test_json_has_the_scalars_and_files(world: World) -> None:
    found = analyze(world, "efficiency", "more", out="j", options=("--json", "--no-figures")).json
    assert found["schema"] == "more.analyze/1"
    (made,) = found["analyses"]
    assert made["files"] == [str(world.root / "j" / "efficiency.csv")]
    assert {scalar["run"] for scalar in made["scalars"]} == {"more"}
    assert [scalar["name"] for scalar in made["scalars"] if scalar["name"].startswith(("median", "milli"))] == [
        "median seconds per edit",
        "median peak memory of an edit, MiB above what was held",
        "milliseconds to route a question after 4 edits",
    ]
    assert (found["page"], found["skipped"]) == (None, {})
    lags = analyze(world, "horizon", "more", out="j", options=("--json", "--no-figures")).json["analyses"][0]["scalars"]
    assert {"overlap, first lag below 0.1", "cosine, first lag below 0.1"} <= {scalar["name"] for scalar in lags}
    assert run("analyze", "--json").json["schema"] == "more.analyses/1"


def test_runs_that_were_scored_only_right_after_each_edit_are_not_compared(world: World) -> None:
    for steps in (1, 2):
        options = "--editor", "ft-l", "--set", f"steps={steps}", "--protocol", "online", "--checkpoints", "1"
        assert keep(world, f"online-{steps}", *options).code == 0
    refused = analyze(world, "sensitivity", "online-1", "online-2")
    said = "error: no run was scored after its last edit\nhint: run them with --protocol final\n"
    assert (refused.code, refused.err) == (2, said)


def test_runs_of_different_lengths_are_compared_after_the_last_checkpoint_of_all(world: World) -> None:
    asked = [*ASKED, {"question": "is it a dog ?", "image": "img/black.png"}]
    more = [line(n, rephrases=["which colour ?"], image_rephrases=["img/black.png"], locality=asked) for n in range(3)]
    world.write(more, "longer.jsonl")

    def kept(name: str, limit: int, marks: str) -> None:
        where = "--keep", world.root / name, "--cache", world.root / "cache", "--dtype", "float32"
        options = (
            "--suite",
            world.root / "longer.jsonl",
            "--limit",
            limit,
            "--checkpoints",
            marks,
            "--protocol",
            "final",
        )
        result = run("run", world.model, "--editor", "none" if limit == 2 else "ft-l", *where, *options)
        assert result.code == 0, result.err

    def means(*names: str) -> list[tuple[str, str]]:
        found = analyze(world, "sensitivity", *names, out="lengths", options=("--json", "--no-figures")).json
        return [(scalar["run"], scalar["name"]) for scalar in found["analyses"][0]["scalars"]]

    kept("short", 2, "2")
    kept("long", 3, "2,3")
    kept("apart", 3, "3")
    shared = "mean of five after 2, the last checkpoint of all runs"
    assert means("short", "long") == [("editor=none", shared), ("editor=ft-l", shared)]
    apart = [("editor=none", "mean of five after 2"), ("editor=ft-l", "mean of five after 3")]
    assert means("short", "apart") == apart, "no checkpoint of both: each at its own end"


def test_states_are_kept_of_an_editor_that_wraps_modules(world: World) -> None:
    pytest.importorskip("peft")
    result = keep(world, "wrapped", "--editor", "lora", "--set", "steps=1", "--keep-states", "--protocol", "final")
    assert result.code == 0, result.err
    assert analyze(world, "drift", "wrapped", out="wrapped-drift").code == 0


def test_lines_differ_in_colour_or_stroke() -> None:
    figure = Figure()
    axes = figure.subplots()
    for place in range(3 * len(PALETTE)):
        figures.line(axes, place, [0, 1], [0, 1])
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(looks) == len(axes.lines)


def test_what_was_not_kept_is_said_and_skipped_in_all(world: World) -> None:
    result = keep(world, "bare", "--editor", "none", "--keep-updates")
    assert result.code == 0, result.err
    wrote = analyze(world, "cosine", "bare", out="bare-out")
    assert (wrote.code, wrote.err) == (
        2,
        "error: editor `none` wrote no weights\nhint: choose another analysis\n",
    )
    states = analyze(world, "drift", "bare", out="bare-out")
    assert states.code == 2
    assert "hint: run it into another folder with --keep-states" in states.err
    whole = analyze(world, "all", "bare", out="bare-out")
    assert whole.code == 0, whole.err
    assert "skipped: cosine: editor `none` wrote no weights" in whole.out
    assert "skipped: sensitivity needs at least two runs" in whole.out


def test_options_that_need_others(world: World) -> None:
    alone = run("run", world.model, "--suite", world.root / "edits.jsonl", "--keep-updates")
    assert (alone.code, "`--keep-updates` needs `--keep DIR`" in alone.err) == (2, True)
    without = run("run", world.model, "--keep", world.root / "x")
    assert (without.code, "--suite" in without.err) == (2, True)
    wrong = keep(world, "x", "--keep-answers", "e-vqa")
    assert (wrong.code, "this suite has edits" in wrong.err) == (2, True)


def test_a_folder_keeps_one_run(world: World) -> None:
    other = keep(world, "more", "--editor", "none")
    assert (other.code, other.out) == (2, "")
    assert "keeps another run" in other.err
    other = keep(world, "img", "--editor", "none")
    assert (other.code, "is not empty and holds no run" in other.err) == (2, True)
    assert "there is no `run.json`" in analyze(world, "cosine", "img").err


@pytest.mark.parametrize("name", ["run.json", "lines.jsonl", "updates/00002.safetensors", "right.safetensors"])
def test_a_damaged_file_is_named(world: World, tmp_path: Path, name: str) -> None:
    copy = World.at(tmp_path)
    shutil.copytree(world.root / "more", tmp_path / "more")
    (tmp_path / "more" / name).write_bytes(b'{"t": "x"}\n')
    result = analyze(copy, "cosine", "more")
    assert (result.code, result.out) == (4, "")
    assert "more" in result.err
    assert len(result.err.splitlines()) == 2


def test_a_file_of_states_that_is_gone_is_damage(world: World, tmp_path: Path) -> None:
    copy = World.at(tmp_path)
    shutil.copytree(world.root / "more", tmp_path / "more")
    *_, last = sorted((tmp_path / "more" / "states").iterdir())
    last.unlink()
    result = analyze(copy, "drift", "more")
    assert (result.code, result.out) == (4, "")
    assert f"{last.name}` is missing" in result.err


def test_files_that_do_not_fit_together_are_named(world: World, tmp_path: Path) -> None:
    folder, copy = tmp_path / "more", World.at(tmp_path)

    def damaged(name: str, old: str, new: str) -> str:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(world.root / "more", folder)
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))
        result = analyze(copy, "all", "more")
        assert (result.code, result.out) == (4, "")
        return result.err

    assert "the numbers of edits differ" in damaged("run.json", '"ids":["e1",', '"ids":[')
    assert "line 1 of the journal: value error, a score lacks gen_exact" in damaged("lines.jsonl", "gen_exact", "x")
    assert "scores edits that the run does not have" in damaged("lines.jsonl", '"scores": {"1"', '"scores": {"9"')
    assert "answers other questions" in damaged("answers/00001.json", '[["Yes","', '[["No","no"],["Yes","')
    shutil.rmtree(folder)
    shutil.copytree(world.root / "more", folder)
    first = load_file(folder / "updates" / "00001.safetensors")
    save_file({name: value[1:].clone() for name, value in first.items()}, folder / "updates" / "00002.safetensors")
    result = analyze(copy, "cosine", "more")
    assert (result.code, "has another shape than before" in result.err) == (4, True)
    save_file(first, folder / "updates" / "00002.safetensors")
    (folder / "right.safetensors").unlink()
    result = analyze(copy, "cosine", "more")
    assert (result.code, "do not fit" in result.err) == (4, True), "half of a product is no change"


@pytest.mark.slow
@forks
def test_an_interrupted_run_continues_and_keeps_the_same(world: World) -> None:
    options = ("--editor", "more", "--set", "max_steps=2", "--keep-updates", "--keep-states", "--checkpoints", "2")
    assert keep(world, "whole", *options).code == 0
    assert stopped_at(3, RunJournal, "add", lambda: keep(world, "cut", *options).code) == 130
    unfinished = analyze(world, "cosine", "cut")
    assert (unfinished.code, "of 4 edits" in unfinished.err) == (4, True)
    assert "it continues" in unfinished.err
    assert keep(world, "cut", *options).code == 0
    one, other = tree(world.root / "whole"), tree(world.root / "cut")
    kept = {name for name in one if name.startswith(("updates/", "states/")) or name == "right.safetensors"}
    assert len(kept) == 4 + 3 + 1
    assert {name: one[name] for name in kept} == {name: other[name] for name in kept}


def test_without_matplotlib_only_tables_are_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str):
        return None if name == "matplotlib" else real_find_spec(name)

    monkeypatch.setattr("more_lab.analyses.run.find_spec", none)
    result = analyze(world, "cosine", "more", out="none")
    assert (result.code, result.out) == (2, "")
    hint = 'hint: pip install "more-vlm[plots]", or add --no-figures\n'
    assert result.err == f"error: figures need matplotlib\n{hint}"
    assert not (world.root / "none").exists()
    assert analyze(world, "cosine", "more", out="none", options=("--no-figures",)).code == 0
    assert {path.name for path in (world.root / "none").iterdir()} == {"cosine.csv"}


def test_a_model_with_other_weights_is_refused(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.root / "more", tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    record["reproduce"]["base"] = "another"
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    result = run("analyze", "variance", "--run", tmp_path / "run", "--out", tmp_path / "out")
    assert (result.code, "is not the model that" in result.err) == (5, True)


def test_a_kept_run_is_asked_again_as_it_was(world: World) -> None:
    talk = World(world.root / "talk")
    turns = [{"role": "user", "content": "what is it ?"}, {"role": "assistant", "content": "a dog"}]
    talk.write([line(0, messages=turns, locality=[{**ASKED[0], "messages": turns}]), line(1, locality=ASKED)])
    assert keep(talk, "kept", "--set", "max_steps=1", "--set", "system=be brief", "--keep-states").code == 0
    kept = KeptRun(talk.root / "kept")
    edits = read_edits(talk.root / "edits.jsonl").edits
    assert [asked.query for asked in kept.record.edits] == [Query.of(edit) for edit in edits]
    assert [asked.query for asked in kept.record.probes] == [Query.of(one) for edit in edits for one in edit.locality]
    assert load_base(kept, Machine(), no_progress).prompter.system == "be brief"
    assert "turns" not in (world.root / "more" / "run.json").read_text()
