"""Probes of an edit and their batched scores."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from more_cli.editors.base import EditContext
from more_cli.editors.more.editor import MoreEditor
from more_cli.evaluation.names import Yardstick
from more_cli.evaluation.per_edit import by_edit, probes_hash
from more_cli.evaluation.probes import Probe, ProbeScore, ask, probes_of, run_probes
from more_cli.inputs.turns import Turn
from more_cli.model.batches import Query
from more_cli.ops.evaluate import by_age, summarise
from support.editing import an_edit, picture, recipe, requests


def test_every_part_of_an_edit_becomes_a_probe(tmp_path: Path) -> None:
    probes = list(probes_of(an_edit(tmp_path)))
    kinds = [probe.kind for probe in probes]
    assert kinds == ["rel", "gen_text", "gen_text", "gen_image", "portability", "portability", "loc_text", "loc_image"]
    assert [probe.target for probe in probes] == ["7"] * 4 + ["x", "y"] + [None, None]
    assert [probe.groups for probe in probes[4:6]] == [("portability", "port_2"), ("portability",)]
    assert probes[3].query.images == (picture(tmp_path, "blue"),)


def test_an_untouched_model_has_perfect_locality_and_scores_keep_their_order(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(), sites)
    probes = list(probes_of(an_edit(tmp_path)))
    with editor.attach(runtime):
        scores = run_probes(runtime, editor, probes)
    assert [score.probe for score in scores] == probes
    for score in scores:
        if score.probe.is_locality:
            assert score.values["loc_top1_answer"] == score.values["loc_gen_same"] == 1.0
            assert score.values["loc_expkl_answer"] == pytest.approx(1.0)
            assert score.answer == score.base_answer


def test_a_learnt_edit_scores_as_learnt_and_locality_sees_the_change(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(), sites)
    edit = requests(tmp_path, 1)[0]
    elsewhere = Probe("e", "loc_image", Query((picture(tmp_path, "green"),), "what colour is it ?"))
    with editor.attach(runtime):
        editor.edit(edit, EditContext())
        rel, loc = run_probes(
            runtime, editor, [Probe("e", "rel", edit.query, edit.target), elsewhere], keep_logits=True
        )
    assert (rel.values["tf_exact"], rel.values["gen_exact"], rel.values["gen_stops"]) == (1.0, 1.0, 1.0)
    assert rel.answer == edit.target
    assert rel.logits is not None
    assert rel.logits.shape[0] == len(runtime.encode(edit.query, edit.target).target)
    assert loc.values["loc_expkl_answer"] < 1.0
    with editor.attach(runtime), runtime.base():
        (base,) = run_probes(runtime, editor, [Probe("e", "rel", edit.query, edit.target)])
    assert base.values["tf_exact"] == 0.0


def test_a_score_does_not_depend_on_the_other_probes(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(), sites)
    query = requests(tmp_path, 1)[0].query
    short, long = Probe("e", "rel", query, "r"), Probe("e", "rel", query, "r g b " * 30)
    with editor.attach(runtime):
        (alone,) = run_probes(runtime, editor, [short])
        beside, _ = run_probes(runtime, editor, [short, long])
    assert (beside.answer, beside.values) == (alone.answer, pytest.approx(alone.values))


def test_the_earlier_turns_are_part_of_what_was_asked(tmp_path: Path) -> None:
    query = requests(tmp_path, 1)[0].query
    probe = Probe("e", "rel", query, "r")
    talked = replace(probe, query=replace(query, turns=(Turn("user", "Hello."), Turn("assistant", "Hello."))))
    assert probes_hash([probe]) != probes_hash([talked])


def test_the_summary_names_metrics_in_full(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(), sites)
    with editor.attach(runtime):
        found = summarise(run_probes(runtime, editor, list(probes_of(an_edit(tmp_path))), generate=False))
    assert set(found) >= {"rel.tf_exact", "gen_text.target_nll", "gen_image.tf_token_acc", "loc_text.loc_expkl_answer"}
    assert "rel.gen_exact" not in found
    assert found["gen_text.tf_exact"].n == 2


def test_a_metric_that_some_probes_lack_counts_where_it_was_measured() -> None:
    """The second probe was never asked: it failed, but it has no likelihood."""
    probe = Probe("e", "rel", Query((), "what ?"), "7")
    scores = [ProbeScore(probe, {"gen_exact": 1.0, "target_nll": 2.0}), ProbeScore(probe, {"gen_exact": 0.0}, None)]
    found = summarise(scores)
    assert {name: (value.value, value.n) for name, value in found.items()} == {
        "rel.target_nll": (2.0, 1),
        "rel.gen_exact": (0.5, 2),
    }
    (edit,) = by_edit(scores)
    assert edit.values() == {"rel.gen_exact": [1.0, 0.0], "rel.target_nll": [2.0]}


def test_retention_is_grouped_by_the_edits_that_came_after() -> None:
    """Of 25 edits the oldest 15 have ten or more behind them; two of those are forgotten."""
    values = [0.0, 0.0, *[1.0] * 23]
    groups = by_age(values)
    assert {ages: (round(group.value, 4), group.n) for ages, group in groups.items()} == {
        "0-9": (1.0, 10),
        "10-24": (round(13 / 15, 4), 15),
    }
    assert {ages: group.n for ages, group in by_age([1.0] * 10).items()} == {"0-9": 10}
    assert {ages: group.n for ages, group in by_age([1.0] * 1100).items()} == {
        "0-9": 10,
        "10-99": 90,
        "100-999": 900,
        "1000-1099": 100,
    }
    assert by_age([]) == {}


def test_what_is_right_word_for_word_is_not_generated_again(runtime, sites, tmp_path, monkeypatch) -> None:
    """The scores equal those of generating everything, which happens if a checkpoint bans or penalises tokens."""
    editor, edits = MoreEditor.fresh(recipe(), sites), requests(tmp_path, 3)
    probes = [Probe(edit.id, "rel", edit.query, edit.target) for edit in edits]
    probes += [Probe(edit.id, "gen_text", edit.query, "no such answer") for edit in edits]
    probes += [
        Probe("e", "loc_image", Query((picture(tmp_path, "green"),), word)) for word in ("what ?", "is it red ?")
    ]
    probes += [Probe("e", "loc_text", Query((), word)) for word in ("what ?", "why ?")]
    asked: list[int] = []
    generate = type(runtime).generate
    monkeypatch.setattr(
        type(runtime), "generate", lambda self, queries, n: asked.append(len(queries)) or generate(self, queries, n)
    )
    with editor.attach(runtime):
        for number, edit in enumerate(edits, 1):
            editor.edit(edit, EditContext(number))
        few, few_asked = run_probes(runtime, editor, probes), sum(asked)
        asked.clear()
        monkeypatch.setattr(runtime.model.generation_config, "repetition_penalty", 1.0 + 1e-9)
        assert not runtime.picks_most_likely
        every, all_asked = run_probes(runtime, editor, probes), sum(asked)
    held = sum(score.values.get("tf_exact") == 1.0 for score in few)
    same = sum(score.values.get("loc_gen_same") == 1.0 for score in few)
    assert held
    assert all_asked == 6 + 2 * 4, "targets once, locality by the base and by the edited model"
    assert few_asked == all_asked - held - same
    for one, other in zip(few, every, strict=True):
        assert (one.answer, one.base_answer) == (other.answer, other.base_answer)
        assert one.values == pytest.approx(other.values, abs=1e-5)


@pytest.mark.parametrize("said", [20, 14, 0])
def test_a_gold_answer_is_a_guess_at_what_a_model_says(runtime, sites, tmp_path, monkeypatch, said: int) -> None:
    """Answers and logits are as if everything had been generated, with fewer generated answers."""
    editor, edit = MoreEditor.fresh(recipe(), sites), requests(tmp_path, 1)[0]
    shades = [picture(tmp_path, colour) for colour in ("red", "#f01010", "#e01818", "#f02020")]
    probes = [Probe("e", "loc_image", Query((shades[place % 4],), edit.query.question)) for place in range(20)]
    queries = [probe.query for probe in probes]
    asked: list[int] = []
    generate = type(runtime).generate
    monkeypatch.setattr(
        type(runtime), "generate", lambda self, queries, n: asked.append(len(queries)) or generate(self, queries, n)
    )
    with editor.attach(runtime):
        editor.edit(edit, EditContext())
        every = ask(runtime, queries, probes, Yardstick())
        assert sum(asked) == len(probes), "without a gold answer"
        asked.clear()
        answers = [runtime.prompter.text(one.tokens) for one in every]
        assert answers[0] == edit.target
        other = iter([None, "no such answer"] * len(probes))
        golds = [answer if place < said else next(other) for place, answer in enumerate(answers)]
        probes = [replace(probe, gold=gold) for probe, gold in zip(probes, golds, strict=True)]
        few = ask(runtime, queries, probes, Yardstick())
    assert sum(asked) == len(probes) - said
    for one, same in zip(few, every, strict=True):
        assert one.tokens == same.tokens
        assert torch.equal(one.logits, same.logits), "measured in the same batch"


def test_a_guess_is_made_once_where_there_are_few(runtime, sites, tmp_path, monkeypatch) -> None:
    """Three gold answers, one of them wrong: all are tried at once, and the model's answers scored in one more pass."""
    scored: list[int] = []
    score = type(runtime).score
    monkeypatch.setattr(
        type(runtime), "score", lambda self, batch, **kind: scored.append(len(batch)) or score(self, batch, **kind)
    )
    query = Query((picture(tmp_path),), "what is it ?")
    editor, edit = MoreEditor.fresh(recipe(), sites), requests(tmp_path, 1)[0]
    with editor.attach(runtime):
        editor.edit(edit, EditContext())
        scored.clear()
        golds = [edit.target, edit.target, "no such answer"]
        ask(runtime, [edit.query] * 3, [Probe("e", "loc_image", query, gold=gold) for gold in golds], Yardstick())
    assert scored == [3, 3]
