"""What `--metrics` counts, against examples worked by hand and against the logits themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.editors.base import EditContext, EditRequest
from more_cli.editors.registry import EditorOptions, entry_of
from more_cli.evaluation import metrics
from more_cli.evaluation.probes import probes_of
from more_cli.inputs.edits import read_edits
from more_cli.model.loading import load_runtime
from more_cli.model.scored import Scored
from more_lab.experiments.presets import PRESETS
from support.helpers import Result, World, forks, line, run, stopped_at

# --- one edit by hand, over a vocabulary of twelve tokens of which 1 ends a sequence ---

VOCABULARY, END = 12, 1
FIRST_TEN = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
NINTH_AND_TENTH_SWAPPED = (2, 3, 4, 5, 6, 7, 8, 9, 11, 10)


def ranked(*ids: int) -> Tensor:
    """Logits whose most likely tokens are these, in this order."""
    rest = [id for id in range(VOCABULARY) if id not in ids]
    logits = torch.empty(VOCABULARY)
    logits[[*ids, *rest]] = -torch.arange(VOCABULARY, dtype=torch.float32)
    return logits


def scored(positions: list[Tensor], targets: list[int] | None = None) -> Scored:
    mask = torch.ones(1, len(positions), dtype=torch.bool)
    return Scored(torch.stack(positions)[None], torch.tensor([targets or [0] * len(positions)]), mask)


def one(columns: dict[str, list[float]]) -> dict[str, float]:
    return {name: column[0] for name, column in columns.items()}


def by_hand() -> dict[str, list[float]]:
    """The values of one edit's five probes.

    The target is the tokens 3 5 and the end of sequence. Of the question the model gets 3, not 5, and the end: 1 of 2
    without the end, 2 of 3 with it. Of the rephrase it gets 3 and 5 but no end: 2 of 2. Of the other image nothing.
    """
    target = [3, 5, END]
    right, wrong = ranked(3), ranked(4)
    probes = {
        "rel": metrics.of_targets(scored([right, wrong, ranked(END)], target)),
        "gen_text": metrics.of_targets(scored([right, ranked(5), wrong], target)),
        "gen_image": metrics.of_targets(scored([wrong, wrong, wrong], target)),
        # Two answer positions; at the second another token is the most likely one than was: 1 of 2.
        "loc_text": metrics.of_answers(scored([ranked(7), ranked(8)]), scored([ranked(7), ranked(9)])),
        # One answer position; the ninth and the tenth token have changed places: 8 of 10, the first as it was.
        "loc_image": metrics.of_answers(scored([ranked(*NINTH_AND_TENTH_SWAPPED)]), scored([ranked(*FIRST_TEN)])),
    }
    values = {kind: one(columns) for kind, columns in probes.items()}
    texts = {"rel": "A tram.", "gen_text": "a tram car", "gen_image": "the TRAM"}
    for kind, answer in texts.items():
        values[kind] |= metrics.of_generated(answer, "tram", stops=True)
    # A question of three tokens before the two of the answer: one of five positions has another first token.
    before = torch.stack([ranked(2), ranked(3), ranked(4), ranked(7), ranked(9)])
    after = torch.stack([ranked(2), ranked(3), ranked(4), ranked(7), ranked(8)])
    values["loc_text"] |= metrics.of_everywhere(metrics.top_tokens(after), metrics.top_tokens(before))
    # Four positions, one with two of ten ranks swapped: (10 + 10 + 10 + 8) of 40.
    before = torch.stack([ranked(2), ranked(3), ranked(4), ranked(*FIRST_TEN)])
    after = torch.stack([ranked(2), ranked(3), ranked(4), ranked(*NINTH_AND_TENTH_SWAPPED)])
    values["loc_image"] |= metrics.of_everywhere(metrics.top_tokens(after), metrics.top_tokens(before))
    # What the appendix counts, over three tokens: KL = 1/4 ln 1/2 + 1/2 ln 2 + 0 = 1/4 ln 2, so exp(-KL) = 2^(-1/4).
    pair = [scored([torch.tensor(p).log()]) for p in ([0.25, 0.5, 0.25], [0.5, 0.25, 0.25])]
    values["loc_text"]["loc_expkl_answer"] = metrics.loc_expkl_answer(*pair)[0]
    # The same at one of two positions, and nothing at the other: (1 + 2^(-1/4)) / 2.
    still = torch.tensor([0.5, 0.25, 0.25]).log()
    moved = torch.tensor([0.25, 0.5, 0.25]).log()
    values["loc_image"]["loc_expkl_answer"] = metrics.loc_expkl_answer(scored([still, moved]), scored([still, still]))[
        0
    ]
    return {f"{kind}.{name}": [value] for kind, result in values.items() for name, value in result.items()}


ROOT = 2**-0.25
EXPECTED = {
    "paper-table": {"Rel": 1 / 2, "T-Gen": 1.0, "M-Gen": 0.0, "T-Loc": 1 / 2, "M-Loc": 8 / 10},
    "paper-appendix": {"Rel": 1.0, "T-Gen": 0.0, "M-Gen": 1.0, "T-Loc": ROOT, "M-Loc": (1 + ROOT) / 2},
    "mmedit": {
        "inner/acc": 1 / 2,
        "edit/acc": 1.0,
        "image_rephrase/acc": 0.0,
        "loc/acc": 4 / 5,
        "image_loc/acc": 38 / 40,
    },
    "liveedit": {
        "reliability.acc": 1 / 2,
        "generality.text_rephrase.acc": 1.0,
        "generality.image_rephrase.acc": 0.0,
        "locality.text_loc.acc": 1 / 2,
        "locality.image_loc.acc": 1.0,
    },
    "scopeedit": {
        "inner/acc": 1 / 2,
        "edit/acc": 1.0,
        "image_rephrase/acc": 0.0,
        "loc/acc": 4 / 5,
        "loc/acc_answer": 1 / 2,
        "image_loc/acc": 38 / 40,
        "image_loc/acc_answer": 1.0,
    },
}
RULES = {
    "paper-table": (("online",), "prev", "gold"),
    "paper-appendix": (("online",), "prev", "own"),
    "mmedit": (("single",), "base", "gold"),
    "liveedit": (("final",), "base", "gold"),
    "scopeedit": (("online", "final"), "prev", "gold"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_preset_counts_what_its_source_counts(name: str) -> None:
    preset, values = PRESETS[name], by_hand()
    result = {column: value[0] for column, value in preset.pick(values).items()}
    assert result == pytest.approx(EXPECTED[name], rel=1e-6)
    mean = sum(EXPECTED[name].values()) / 5
    assert preset.average(values) == (pytest.approx(mean, rel=1e-6) if name.startswith("paper") else None)
    assert (preset.protocols, preset.yardstick.baseline, preset.yardstick.prefix) == RULES[name]
    assert preset.yardstick.everywhere == any(column.endswith("_all") for column in preset.columns.values())
    assert preset.notices, "every preset differs somewhere from its source"


def test_a_mean_of_five_needs_all_five() -> None:
    values = by_hand()
    del values["gen_image.tf_token_acc_noeos"]
    assert PRESETS["paper-table"].average(values) is None


# --- a run of each ---


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three edits with a rephrase, another image and two locality probes each, on a tiny model."""
    world = World(tmp_path_factory.mktemp("presets") / "world")
    asked = [
        {"question": "is it a dog ?", "answer": "no"},
        {"question": "what is in the image ?", "image": "img/black.png", "answer": "a black square"},
    ]
    variants = {"rephrases": ["which colour ?"], "image_rephrases": ["img/white.png"]}
    world.write([line(n, **variants, locality=asked) for n in range(3)])
    return world


LEARN = ("--editor", "ft-l", "--set", "rate=0.01", "--set", "steps=5")


def counted(world: World, name: str, *options: object, cache: str = "cache") -> Result:
    where = "--cache", world.root / cache, "--dtype", "float32"
    return run("run", world.model, "--suite", world.root / "edits.jsonl", "--metrics", name, *LEARN, *where, *options)


def cell(report: dict[str, Any], after: int, edit: int) -> dict[str, dict[str, float]]:
    (scores,) = [row["scores"] for row in report["matrix"] if (row["after"], row["edit"]) == (after, edit)]
    return {score["kind"]: score["values"] for score in scores}


@pytest.mark.parametrize("name", RULES)
def test_a_run_reports_the_rules_of_its_preset(world: World, name: str) -> None:
    protocols, baseline, prefix = RULES[name]
    result = counted(world, name, "--json")
    assert result.code == 0, result.err
    report = result.json
    assert (report["baseline"], report["prefix"], report["protocol"]) == (baseline, prefix, protocols[-1])
    assert {readout.partition("@")[0] for readout in report["protocols"]} == set(protocols)
    assert report["preset"]["name"] == name
    for readout, found in report["preset"]["protocols"].items():
        for column, value in found.items():
            if column == "Avg":
                five = [found[other]["value"] for other in found if other != "Avg"]
                assert value["value"] == pytest.approx(sum(five) / 5)
                assert value["n"] == report["protocols"][readout]["rel.gen_exact"]["n"]
            else:
                whole = report["protocols"][readout][report["preset"]["columns"][column]]
                assert {key: whole[key] for key in value} == value
    metric = report["metrics"]["loc_text.loc_top1_answer"]
    assert (metric["baseline"], metric["protocol"], metric["mask"]) == (baseline, protocols[-1], "the answer's tokens")
    assert report["metrics"]["rel.tf_exact"]["baseline"] is None
    for notice in PRESETS[name].notices:
        assert f"note: {notice}" in result.err
    shown = counted(world, name)
    assert f"metrics of {name}: " in shown.out
    assert all(f"\n{column} " in shown.out for column in EXPECTED[name])
    assert "loc_expkl" not in shown.out or name == "paper-appendix"


def test_locality_before_each_edit_is_what_the_logits_say(world: World) -> None:
    """The script's rules again, without batches, caches or stored images: one sequence at a time."""
    runtime = load_runtime(open_checkpoint(world.model))
    editor = entry_of("ft-l").make(EditorOptions(world.model, None, ("rate=0.01", "steps=5")))
    edits = read_edits(world.root / "edits.jsonl").edits
    probes = [[probe for probe in probes_of(edit) if probe.is_locality] for edit in edits]

    def logits(number: int) -> list[tuple[Tensor, int]]:
        result = []
        for probe in probes[number]:
            encoded = runtime.encode(probe.query, probe.gold)
            ids, start = encoded.input_ids[None, :-1], encoded.target.start
            with torch.no_grad():
                images = {name: value for name, value in encoded.extras.items() if name == "pixel_values"}
                whole = runtime.model(input_ids=ids, attention_mask=torch.ones_like(ids), **images, use_cache=False)
            result.append((whole.logits[0], start))
        return result

    report = counted(world, "scopeedit", "--json").json
    before = {}
    with editor.attach(runtime):
        for t, edit in enumerate(edits, 1):
            before[t] = logits(t - 1)
            editor.edit(EditRequest.of(edit), EditContext(number=t))
            for i in [t] if t < len(edits) else [1, 2, 3]:
                for kind, (new, start), (old, _) in zip(
                    ("loc_text", "loc_image"), logits(i - 1), before[i], strict=True
                ):
                    values = cell(report, t, i)[kind]
                    same = new.argmax(-1) == old.argmax(-1)
                    assert values["loc_top1_all"] == pytest.approx(same.double().mean().item()), (t, i)
                    # The position before the answer's first token predicts it; the last one's prediction is no answer.
                    assert values["loc_top1_answer"] == pytest.approx(same[start - 1 : -1].double().mean().item())
                    ten = new.topk(10).indices == old.topk(10).indices
                    assert values["loc_top10_rank_all"] == pytest.approx(ten.double().mean().item())
                    assert values["loc_top10_rank_answer"] == pytest.approx(ten[start - 1 : -1].double().mean().item())
    drifted = counted(world, "liveedit", "--json").json
    for kind, values in cell(report, 3, 1).items():
        narrow = {name: value for name, value in values.items() if not name.endswith("_all")}
        # Scored in another batch, so equal only within float32.
        assert cell(drifted, 3, 1)[kind] == pytest.approx(narrow, rel=1e-5), "before the first edit there is the base"
    assert cell(drifted, 3, 3)["loc_image"] != cell(report, 3, 3)["loc_image"]


@forks
def test_a_run_against_the_model_before_each_edit_resumes_after_a_stop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from more_cli.runner import steps as run_steps

    monkeypatch.setattr(run_steps, "SAVE_EDITS", 1)
    assert stopped_at(3, run_steps.Run, "_edited", lambda: counted(world, "scopeedit", cache="torn")) == 130
    assert list((world.root / "torn").rglob("before/*.safetensors"))
    rest = counted(world, "scopeedit", "--json", cache="torn").json
    assert rest["resumed"] == 2
    assert rest["matrix"] == counted(world, "scopeedit", "--json").json["matrix"]
    assert not list((world.root / "torn").rglob("before")), "answers from before an edit are removed at the end"


def test_all_has_every_metric(world: World) -> None:
    report = counted(world, "all", "--json").json
    assert {"loc_text.loc_top1_all", "loc_image.loc_top10_rank_all", "rel.gen_contains"} <= report["metrics"].keys()
    assert report["preset"]["protocols"]["final@3"].keys() == report["metrics"].keys()
    for kind in ("loc_text", "loc_image"):
        same, flip = (report["metrics"][f"{kind}.{name}"]["value"] for name in ("loc_gen_same", "loc_flip"))
        assert same + flip == 1.0


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("mmeedit",), 2, "did you mean `mmedit`"),
        (("liveedit", "--protocol", "online"), 2, "`--metrics liveedit` sets the protocol itself: final"),
    ],
)
def test_what_cannot_be_counted_is_named(world: World, options: tuple[str, ...], code: int, said: str) -> None:
    result = counted(world, *options)
    assert (result.code, said in result.err) == (code, True), result.err


def test_a_question_without_an_answer_cannot_be_measured_on_it(world: World) -> None:
    path = world.write([line(0, locality=[{"question": "is it a dog ?"}])], "unanswered.jsonl")
    result = run("run", world.model, "--suite", path, "--metrics", "liveedit", "--cache", world.root / "cache")
    assert result.code == 4
    assert "edit `e1`: locality question `is it a dog ?` has no answer" in result.err


def test_metrics_go_with_a_suite_of_edits(world: World) -> None:
    alone = run("run", world.model, "--metrics", "liveedit")
    assert (alone.code, "--suite" in alone.err) == (2, True)
    mme = run("run", world.model, "--suite", "mme", "--metrics", "liveedit")
    assert (mme.code, "suite `mme` has no edits, only questions" in mme.err) == (2, True)


def test_the_list_of_metrics_names_everything() -> None:
    listed = run("suites", "metrics")
    assert (listed.code, listed.err) == (0, "")
    assert all(f"\n{name} " in listed.out for name in (*PRESETS, "loc_top10_rank_all", "gen_contains"))
    as_json = run("suites", "metrics", "--json").json
    assert as_json["schema"] == "more.suites.metrics/1"
    assert {preset["name"] for preset in as_json["presets"]} == set(PRESETS)


def test_the_embedded_suites_have_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("run", "--suite", "e-ic", "--editor", "none", "--limit", "2", "--metrics", "mmedit", "--json")
    result = run(*command, "--cache", tmp_path / "cache")
    assert result.code == 0, result.err
    found = result.json["preset"]["protocols"]["single@2"]
    assert (found["loc/acc"]["value"], found["image_loc/acc"]["value"]) == (1.0, 1.0)
    assert found["inner/acc"]["value"] > 0.5, "the base's own captions are mostly right"
