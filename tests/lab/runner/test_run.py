"""`eval --suite`: an editor runs on a suite; protocols are cells of one matrix; a run can be interrupted."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.editors.registry import EDITORS, entry_of
from more_cli.evaluation.probes import probes_of, run_probes
from more_cli.inputs.edits import read_edits
from more_cli.model.loading import load_runtime
from more_cli.runner.protocols import SINGLE, Schedule, first_failing, forgetting, retained
from more_lab.editors.none import NoEditor
from support.helpers import World, forks, line, run, stopped_at, tree
from support.tiny_language import tiny_language_model


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four edits with a rephrase and two locality probes each, on a tiny model."""
    world = World(tmp_path_factory.mktemp("suite") / "world")
    asked = [
        {"question": "is it a dog ?"},
        {"question": "what is in the image ?", "image": "img/black.png"},
    ]
    world.write([line(n, rephrases=["which colour ?"], locality=asked) for n in range(4)])
    return world


def evaluate(world: World, *options: object, cache: str = "cache") -> dict[str, Any]:
    result = suite(world, *options, cache=cache)
    assert result.code == 0, result.err
    return result.json


def suite(world: World, *options: object, cache: str = "cache"):
    where = "--cache", world.root / cache, "--dtype", "float32"
    return run("run", world.model, "--suite", world.root / "edits.jsonl", *where, "--json", *options)


def values(report: dict[str, Any], readout: str) -> dict[str, float]:
    return {name: result["value"] for name, result in report["protocols"][readout].items()}


def test_the_cells_of_each_protocol_by_hand() -> None:
    schedule = Schedule(4, ("final", "online", "lag", "single"), checkpoints=(1, 2, 9), lags=(1, 7))
    cells = {readout.name: set(readout.cells) for readout in schedule.readouts()}
    assert cells == {
        "final@4": {(4, 1), (4, 2), (4, 3), (4, 4)},
        "final@2": {(2, 1), (2, 2)},
        "final@1": {(1, 1)},
        "online@4": {(1, 1), (2, 2), (3, 3), (4, 4)},
        "online@2": {(1, 1), (2, 2)},
        "online@1": {(1, 1)},
        "lag1@4": {(2, 1), (3, 2), (4, 3)},
        "single@4": {(SINGLE, 1), (SINGLE, 2), (SINGLE, 3), (SINGLE, 4)},
    }
    assert {t: schedule.due(t) for t in range(1, 5)} == {1: [1], 2: [1, 2], 3: [2, 3], 4: [1, 2, 3, 4]}
    assert next(schedule.readouts()).name == "final@4", "the headline comes first"


def test_forgetting_and_the_first_failing_edit_by_hand() -> None:
    matrix = {(1, 1): 1.0, (2, 2): 1.0, (3, 3): 0.0, (2, 1): 0.5, (3, 1): 1.0, (3, 2): 0.0}
    assert forgetting(matrix, 3) == [0.0, 1.0, 0.0]
    assert forgetting(matrix, 3, lag=1) == [0.5, 1.0]
    assert (retained(matrix, 3, 0), retained(matrix, 3, 1), retained(matrix, 3, 2)) == (
        [1.0, 1.0, 0.0],
        [0.5, 0.0],
        [1.0],
    )
    assert Schedule(4, ("online", "lag"), lags=(7, 2, 1)).measured_lags == [0, 1, 2]
    assert Schedule(4, ("lag",), lags=(2, 7)).measured_lags == [2]
    assert first_failing(matrix, next(Schedule(3, ("final",)).readouts())) == 2


def test_no_editor_moves_nothing_and_has_the_base_s_accuracy(world: World) -> None:
    report = evaluate(world, "--editor", "none")
    assert set(report["protocols"]) == {"final@4", "final@1", "online@4", "online@1"}
    assert (report["headline"], report["protocol"], report["baseline"]) == ("final@4", "final", "base")
    for readout in report["protocols"]:
        result = values(report, readout)
        assert all(result[f"{kind}.loc_gen_same"] == 1.0 for kind in ("loc_text", "loc_image"))
        assert all(result[f"{kind}.loc_top1_answer"] == 1.0 for kind in ("loc_text", "loc_image"))
        assert result["loc_text.loc_expkl_answer"] == 1.0
    right = [edit["outcome"]["status"] == "already-right" for edit in report["stream"]]
    assert values(report, "online@4")["rel.tf_exact"] == sum(right) / 4


def test_no_editor_is_the_base_bit_for_bit_in_half_precision(tmp_path: Path) -> None:
    """What the base answered is what `none` answers, however probes are batched, and it is scored once."""
    world = World(tmp_path / "world", dtype="bfloat16")
    asked = [{"question": f"is it {n} ?", **image} for n in range(4) for image in ({}, {"image": "img/black.png"})]
    world.write([line(n, rephrases=["which colour ?"], locality=asked[: 2 * n + 2]) for n in range(4)])
    command = "run", world.model, "--suite", world.root / "edits.jsonl", "--editor", "none", "--json"
    report = run(*command, "--cache", tmp_path / "cache", "--metrics", "all").json
    for readout, result in report["protocols"].items():
        for name, value in result.items():
            if ".loc_" in name:
                assert value["value"] == (0.0 if name.endswith("loc_flip") else 1.0), (readout, name)
    assert report["forgetting"]["value"] == 0.0
    assert len({json.dumps(row["scores"]) for row in report["matrix"] if row["edit"] == 1}) == 1
    runtime = load_runtime(open_checkpoint(world.model))
    assert runtime.model.dtype == torch.bfloat16
    edits = read_edits(world.root / "edits.jsonl").edits
    rel = [run_probes(runtime, NoEditor(), list(probes_of(edit)))[0].values["tf_token_acc"] for edit in edits]
    assert values(report, "final@4")["rel.tf_token_acc"] == sum(rel) / 4


def test_edits_are_learnt_and_the_state_beside_the_model_is_left_alone(world: World) -> None:
    before = tree(world.root / "model")
    report = evaluate(world, "--set", "max_steps=30")
    assert values(report, "online@4")["rel.tf_exact"] == 1.0
    assert values(report, "online@1") == values(report, "final@1")
    assert tree(world.root / "model") == before
    assert not list(world.root.glob("model.more*"))
    assert [edit["id"] for edit in report["per_edit"]] == ["e1", "e2", "e3", "e4"]
    assert all(len(edit["values"]["gen_text.gen_exact"]) == 1 for edit in report["per_edit"])
    assert report["reproduce"]["constants"]["max_steps"] == 30


def test_a_final_cell_is_what_eval_of_a_state_measures(world: World) -> None:
    """Two ways to one number: the suite's last row, and `edit` then `eval`."""
    report = evaluate(world, "--set", "max_steps=30")
    state = world.root / "other.more"
    options = "--state", state, "--dtype", "float32"
    run("edit", world.model, world.root / "edits.jsonl", "--set", "max_steps=30", *options)
    scored = run("eval", world.model, *options, "--json").json
    for name, result in scored["metrics"].items():
        assert report["metrics"][name]["value"] == pytest.approx(result["value"], abs=1e-4), name
    for suffix in ("more", "more.d"):
        path = world.root / f"other.{suffix}"
        path.rename(world.root / f"kept-{suffix}")


def test_naive_is_the_recipe_without_p(world: World) -> None:
    report = evaluate(world, "--editor", "naive", "--limit", 2)
    assert report["reproduce"]["constants"]["precondition"] is False
    assert evaluate(world, "--limit", 2)["reproduce"]["constants"]["precondition"] is True


def test_the_same_command_reads_the_finished_run(world: World) -> None:
    first = evaluate(world, "--limit", 2)
    second = evaluate(world, "--limit", 2)
    assert (second["resumed"], second["base_asked"]) == (2, 0)
    volatile = {"wall_seconds", "resumed", "base_asked"}
    assert {key: first[key] for key in first if key not in volatile} == {
        key: second[key] for key in second if key not in volatile
    }
    again = evaluate(world, "--limit", 2, "--again")
    assert (again["resumed"], again["base_asked"]) == (0, 0), "the base's answers are cached"
    assert again["matrix"] == first["matrix"]


@forks
def test_an_interrupted_run_resumes_and_ends_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from more_cli.runner import steps as run_steps

    monkeypatch.setattr(run_steps, "SAVE_EDITS", 1)

    assert stopped_at(3, run_steps.Run, "_edited", lambda: suite(world, cache="torn")) == 130
    rest = evaluate(world, cache="torn")
    assert rest["resumed"] == 2
    assert rest["matrix"] == evaluate(world)["matrix"]


def test_single_edits_start_from_the_base_each(world: World) -> None:
    report = evaluate(world, "--protocol", "single", "--limit", 2, "--set", "max_steps=30")
    assert set(report["protocols"]) == {"single@2"}
    assert values(report, "single@2")["rel.tf_exact"] == 1.0
    first = [row for row in report["matrix"] if (row["after"], row["edit"]) == (SINGLE, 1)]
    online = evaluate(world, "--set", "max_steps=30")["matrix"]
    assert first[0]["scores"] == next(row["scores"] for row in online if (row["after"], row["edit"]) == (1, 1))


def test_lags_are_scored_on_the_same_stream(world: World) -> None:
    report = evaluate(world, "--protocol", "lag", "--lags", "1,2", "--editor", "none")
    assert {name: result["rel.tf_exact"]["n"] for name, result in report["protocols"].items()} == {
        "lag1@4": 3,
        "lag2@4": 2,
    }


def test_a_lag_that_no_edit_reaches_is_refused_before_the_model_is_loaded(world: World) -> None:
    refused = run("run", world.model, "--suite", world.root / "edits.jsonl", "--protocol", "lag", "--lags", "10")
    assert (refused.code, "no edit of 4 has as many after it" in refused.err) == (2, True)


def test_what_greedy_answers_follow_is_part_of_a_run(world: World, tmp_path: Path) -> None:
    copied = world.copy(tmp_path / "copy")
    first = evaluate(copied, "--editor", "none")
    config = copied.model / "generation_config.json"
    values = json.loads(config.read_text()) if config.exists() else {}
    config.write_text(json.dumps(values | {"min_new_tokens": 2}))
    second = evaluate(copied, "--editor", "none")
    assert second["resumed"] == 0
    assert first["reproduce"]["generation"] != second["reproduce"]["generation"]


def test_retention_by_lag_follows_from_the_matrix(world: World) -> None:
    settings = ("--editor", "ft-l", "--set", "rate=0.01", "--set", "steps=40")
    lagged = ("--protocol", "online", "--protocol", "lag", "--lags", "1,3", *settings)
    report = evaluate(world, *lagged)
    cells = {
        (row["after"], row["edit"]): next(s["values"]["gen_exact"] for s in row["scores"] if s["kind"] == "rel")
        for row in report["matrix"]
    }
    assert report["retention"].keys() == {"0", "1", "3"}
    for lag in (0, 1, 3):
        kept = [cells[i + lag, i] for i in range(1, 5 - lag)]
        measured = report["retention"][str(lag)]
        assert (measured["value"], measured["n"]) == (pytest.approx(sum(kept) / len(kept)), len(kept))
    for lag in (1, 3):
        lost = [cells[i, i] - cells[i + lag, i] for i in range(1, 5 - lag)]
        measured = report["forgetting_by_lag"][str(lag)]
        assert (measured["value"], measured["n"]) == (pytest.approx(sum(lost) / len(lost)), len(lost))
    assert report["forgetting_by_lag"]["3"]["value"] == 1.0, "fine-tuning forgets the first of four colours"
    shown = run("run", world.model, "--suite", world.root / "edits.jsonl", "--cache", world.root / "cache", *lagged,
                "--dtype", "float32").out  # fmt: skip
    assert "edits since  rel.gen_exact" in shown
    assert "retention" in evaluate(world, "--editor", "none")


def test_portability_of_vlkeb_is_measured_by_hop(world: World, tmp_path: Path) -> None:
    """Two records in the shape of VLKEB's file, one with questions of one and of two steps about the edit's image."""

    def record(n: int, hops: int) -> dict[str, Any]:
        asked = [
            {"port_type": f"{hop}-hop", "Q&A": {"Question": f"which letter is {hop} after it ?", "Answer": "s"}}
            for hop in range(1, hops + 1)
        ]
        return {
            "src": f"what colour is it {n} ?", "pred": "x", "alt": "r", "rephrase": f"which colour {n} ?",
            "image": "m.01/google_1.png", "image_rephrase": "m.01/yahoo_1.png", "loc": f"is it {n} ?", "loc_ans": "no",
            "m_loc": "m.02/bing_1.png", "m_loc_q": "what is it ?", "m_loc_a": "x", "port_new": asked,
        }  # fmt: skip

    root = tmp_path / "vlkeb"
    for name, colour in (("m.01/google_1", "red"), ("m.01/yahoo_1", "orange"), ("m.02/bing_1", "black")):
        path = root / "VLKEB_images" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((world.root / "img" / f"{colour}.png").read_bytes())
    (root / "eval_multihop.json").write_text(json.dumps([record(1, hops=2), record(2, hops=1)]))
    where = "--cache", tmp_path / "cache", "--dtype", "float32"
    command = "run", world.model, "--suite", "vlkeb", "--data-root", root, "--editor", "ft-l", *where
    result = run(*command, "--json")
    assert result.code == 0, result.err
    found = result.json["protocols"]["online@2"]
    ns = {group: found[f"{group}.tf_token_acc"]["n"] for group in ("portability", "port_1", "port_2")}
    assert ns == {"portability": 3, "port_1": 2, "port_2": 1}
    (scores,) = [row["scores"] for row in result.json["matrix"] if (row["after"], row["edit"]) == (1, 1)]
    hops = {score["hop"]: score["values"]["target_nll"] for score in scores if score["kind"] == "portability"}
    assert hops.keys() == {1, 2}
    assert result.json["protocols"]["online@1"]["portability.target_nll"]["value"] == pytest.approx(
        sum(hops.values()) / 2
    )
    assert len(result.json["per_edit"][0]["values"]["portability.gen_exact"]) == 2
    assert "portability.gen_exact" in run(*command).out
    counted = run(*command, "--metrics", "mmedit", "--json").json["preset"]["protocols"]["single@2"]
    assert counted["port/acc"]["n"] == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--editor", "moer"), "did you mean `more`"),
        (("--protocol", "frozen"), "unknown protocol `frozen`"),
        (("--checkpoints", "1,x"), "is not a list of numbers"),
        (("--checkpoints", "3-1"), "is not a list of numbers"),
        (("--checkpoints", "0,5"), "is not a list of numbers from 1 to"),
        (("--checkpoints", "1", "--batch"), "are scored after the last one alone"),
        (("--lags", "1"), "`--lags` needs `--protocol lag`"),
        (("--protocol", "final", "--protocol", "lag", "--limit", "2"), "no edit of 2 has as many after it"),
        (("--editor", "more:paper", "--recipe", "llava"), "has a fixed recipe"),
    ],
)
def test_what_cannot_be_run_is_named(world: World, options: tuple[str, ...], said: str) -> None:
    result = suite(world, *options)
    assert result.code == 2
    assert said in result.err


def test_a_state_that_is_not_there_is_named(world: World) -> None:
    result = suite(world, "--editor", "none", "--limit", 1, "--state", "none.more")
    assert (result.code, result.out) == (5, "")
    assert "error: no state at `none.more`" in result.err


def test_without_a_model_the_embedded_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    result = run("run", "--suite", "e-vqa", "--editor", "none", "--limit", 1)
    assert result.code == 0, result.err
    assert "embedded demo model" in result.err
    assert "rel.gen_exact" in result.out
    assert os.listdir(tmp_path) == ["xdg"]
    assert (tmp_path / "xdg" / "more" / "runs").is_dir()


def test_a_model_that_was_not_named_is_said(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink(world.model, tmp_path / "model")
    (tmp_path / "model.more").touch()
    suite = ("run", "--suite", world.root / "edits.jsonl", "--editor", "none", "--limit", 1, "--cache", "cache")
    result = run(*suite)
    assert result.code == 0, result.err
    assert result.err == "note: no MODEL given; using `model`, without the edits of its state\n"
    assert result.out.startswith("edits, 1 edit (")


@pytest.mark.parametrize("editor", ["ft-l", "ft-m", "lora"])
def test_trained_editors_run_by_name(world: World, editor: str) -> None:
    report = evaluate(world, "--editor", editor, "--limit", 2, "--set", "rate=0.01", "--set", "steps=40")
    result = values(report, "final@2")
    assert report["reproduce"]["constants"]["rate"] == 0.01
    assert values(report, "online@2")["rel.tf_exact"] == 1.0
    if editor == "ft-m":
        assert result["loc_text.loc_top1_answer"] == result["loc_text.loc_gen_same"] == 1.0
        assert result["loc_text.loc_expkl_answer"] == 1.0


def test_lora_all_trains_on_every_edit_again(world: World) -> None:
    options = "--editor", "lora-all", "--limit", 3, "--set", "steps=2"
    online = evaluate(world, *options)
    assert [row["catch_up"] for row in online["stream"]] == [2.0, 4.0, 6.0]
    final = evaluate(world, *options, "--protocol", "final", "--checkpoints", "")
    assert [row["catch_up"] for row in final["stream"]] == [0.0, 0.0, 6.0]
    assert values(final, "final@3") == values(online, "final@3")


def test_an_unknown_setting_of_an_editor_is_named(world: World) -> None:
    result = suite(world, "--editor", "ft-l", "--set", "rank=3")
    assert result.code == 2
    listed = "its keys are steps, rate, decay, stop, prompts, labels, end_of_sequence"
    assert f"error: editor `ft-l`: there is no key `rank`\nhint: {listed}\n" in result.err


def test_every_editor_gets_its_tries_on_other_edits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of E-VQA with two pools; the best setting runs, and what was tried is in the result."""
    root = world.mmedit(2)
    command = (
        *("run", world.model, "--suite", "e-vqa", "--data-root", root, "--image-root", world.root, "--json"),
        *("--cache", world.root / "cache", "--dtype", "float32", "--editor", "ft-l", "--set", "steps=40"),
    )
    result = run(*command, "--calibrate", 3)
    assert result.code == 0, result.err
    found = result.json["reproduce"]["calibration"]
    assert [trial["setting"] for trial in found["tried"]] == [[], ["rate=0.003"], ["rate=0.0003"]]
    best = max(found["tried"], key=lambda trial: trial["score"])
    assert found["chosen"] == best["setting"]
    rate = {"": 0.001, "rate=0.003": 0.003, "rate=0.0003": 0.0003}["".join(found["chosen"])]
    assert result.json["reproduce"]["constants"]["rate"] == rate
    again = run(*command, "--calibrate", 3).json
    assert (again["resumed"], again["reproduce"]) == (2, result.json["reproduce"])
    assert found["at_edge"] == found["chosen"], "the own value, 0.001, lies between the two others"
    monkeypatch.setitem(EDITORS, "ft-l", replace(entry_of("ft-l"), tries=(("rate=0.002",), ("rate=0.0003",))))
    other = run(*command, "--calibrate", 3).json["reproduce"]["calibration"]
    assert [trial["setting"] for trial in other["tried"]] == [[], ["rate=0.002"], ["rate=0.0003"]]
    none = suite(world, "--calibrate", 2)
    assert none.code == 2
    assert "has no calibration pool" in none.err


@pytest.mark.parametrize("family", ["blip-2", "qwen2_vl"])
def test_ft_m_trains_what_adapts_images_in_every_family(tmp_path: Path, family: str) -> None:
    """The Q-Former of BLIP-2, the merger of Qwen2-VL: answers to images change, answers to text never."""
    world = World(tmp_path / "world", family=family)
    asked = [{"question": "is it a dog ?"}, {"question": "what is it ?", "image": "img/black.png"}]
    world.write([line(n, locality=asked) for n in range(2)])
    result = evaluate(world, "--editor", "ft-m", "--set", "rate=0.01", "--set", "steps=5")["metrics"]
    assert result["loc_text.loc_expkl_answer"]["value"] == 1.0
    assert result["loc_image.loc_expkl_answer"]["value"] < 1.0


def test_ft_m_has_nothing_to_train_in_a_plain_language_model(tmp_path: Path) -> None:
    model = tiny_language_model(tmp_path / "llama")
    (tmp_path / "edits.jsonl").write_text('{"id": "a", "question": "who ?", "target": "me"}\n')
    options = "--suite", tmp_path / "edits.jsonl", "--cache", tmp_path / "cache", "--editor", "ft-m"
    refused = run("run", model, *options)
    assert (refused.code, refused.out) == (5, "")
    said = "error: there is no projector to train: a plain language model has none\nhint: use another --editor\n"
    assert refused.err.endswith(said)


def test_options_that_do_not_go_together_are_refused(world: World) -> None:
    alone = run("run", world.model, "--editor", "naive")
    assert (alone.code, "--suite" in alone.err) == (2, True)
    both = run("eval", world.model, "--suite", "e-vqa", "--probes", world.root / "edits.jsonl")
    assert (both.code, "both given" in both.err) == (2, True)
