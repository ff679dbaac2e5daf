"""IKE on tiny models: what a question is asked with, when it is left alone, and what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from more_cli.demo.files import demo_model_dir
from more_cli.editors.base import EditContext, EditRequest, FitData
from more_cli.editors.past import LastScore, Past
from more_cli.editors.registry import EditorOptions, entry_of
from more_cli.errors import DataError
from more_cli.evaluation.probes import locality_probes, run_probes
from more_cli.inputs.edits import Edit
from more_cli.inputs.edits import Probe as Question
from more_cli.model.batches import Query
from more_cli.model.families import family_of
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from more_lab.editors.ike.demonstrations import demonstration, demonstrations_of, statement
from more_lab.editors.ike.editor import ROOM, IkeEditor, IkeTuning
from more_lab.editors.ike.retrieval import OWN, asked_of, best_threshold
from support.editing import picture
from support.tiny_families import make_family

COLOURS = ("red", "blue", "green", "white", "black", "yellow")
TARGETS = ("7", "fox", "a dog", "red", "a cat", "blue")
QUESTIONS = ("what is in the image ?", "is it a dog ?", "what colour is it ?", "who is it ?", "why ?", "what ?")


def edits(folder: Path, count: int = 5) -> list[Edit]:
    return [
        Edit(
            id=f"e{place}",
            images=(picture(folder, COLOURS[place]),),
            question=QUESTIONS[place],
            target=TARGETS[place],
            rephrases=(f"tell me : {QUESTIONS[place]}",),
            image_rephrases=(picture(folder, COLOURS[place - 1]),),
            locality=(
                Question(f"{QUESTIONS[place - 1]} and what ?", (), TARGETS[place - 1]),
                Question(QUESTIONS[place - 2], (picture(folder, COLOURS[place - 3]),), "no"),
            ),
        )
        for place in range(count)
    ]


def fitted(runtime: Runtime, pool: list[Edit], threshold: float | None = None, **tuning: float) -> IkeEditor:
    """An editor fitted on a pool, with a threshold of the test's own if one is given."""
    editor = IkeEditor(IkeTuning.model_validate(tuning))
    with editor.attach(runtime):
        editor.fit(FitData(pool))
    if threshold is not None:
        editor.load_fitted(editor.fitted() | {"threshold": torch.tensor(threshold)})
    return editor


def context(number: int) -> EditContext:
    return EditContext(number, Past.of({n: LastScore(0.0, n) for n in range(1, number)}))


def stored(editor: IkeEditor, runtime: Runtime, pool: list[Edit]) -> IkeEditor:
    with editor.attach(runtime):
        for number, edit in enumerate(pool, 1):
            editor.edit(EditRequest.of(edit), context(number))
    return editor


def of(edit: Edit) -> Query:
    return Query(edit.images, edit.question)


@pytest.mark.parametrize(("empty_line", "between"), [(False, "\n"), (True, "\n\n")])
def test_a_question_comes_behind_demonstrations_and_the_fact(
    runtime: Runtime, tmp_path: Path, empty_line: bool, between: str
) -> None:
    pool = edits(tmp_path)
    editor = stored(fitted(runtime, pool[1:], demonstrations=3, empty_line=empty_line), runtime, pool[:1])
    (edit, *_), other = pool, "what is it ?"
    own = demonstration(edit.question, edit.target, edit.question, edit.target)
    with editor.attach(runtime):
        nearest = editor.bank.nearest(runtime, own, 100)
        asked = editor.rewrite(of(edit))
    assert len(editor.bank.texts) == len(nearest) == 3 * 4, "copy, update and retain of every record"
    assert set(editor.bank.texts) == {text for record in pool[1:] for text in demonstrations_of(record)}
    shown = [editor.bank.texts[place] for place in nearest[:3]]
    lines = [*shown, own, statement(edit.question, edit.target, edit.question)]
    assert asked == Query(edit.images, between.join(lines))
    assert statement("q", "y", other) == f"New Fact: q y\nPrompt: {other}"


def test_demonstrations_come_by_similarity(runtime: Runtime, tmp_path: Path) -> None:
    editor = fitted(runtime, edits(tmp_path))
    bank = editor.bank
    for place in (0, 4, len(bank.texts) - 1):
        nearest = bank.nearest(runtime, bank.texts[place], len(bank.texts))
        similar = bank.vectors[nearest] @ bank.vectors[place]
        assert nearest[0] == place
        assert bool((similar[:-1] >= similar[1:]).all())


def test_the_prefix_is_empty_below_the_threshold(runtime: Runtime, tmp_path: Path) -> None:
    pool = edits(tmp_path)
    near = stored(fitted(runtime, pool), runtime, pool[:1])
    asked = Query(pool[1].images, "is it a fox ?")
    with near.attach(runtime):
        keys = torch.stack([near._key(query) for query in (of(pool[0]), asked)])
    similar = float(keys[0] @ keys[1])
    assert similar < OWN
    for threshold, expected in ((similar + 1e-3, False), (similar - 1e-3, True)):
        editor = stored(fitted(runtime, pool, threshold), runtime, pool[:1])
        plain = runtime.encode(asked, "7")
        with editor.attach(runtime):
            assert (editor.found(asked) is not None) is expected
            assert (editor.rewrite(asked) != asked) is expected
            assert torch.equal(runtime.encode(asked, "7").input_ids, plain.input_ids) is not expected


def test_what_is_not_meant_gets_the_prefix_too_if_it_is_near(runtime: Runtime, tmp_path: Path) -> None:
    pool = edits(tmp_path)
    editor = stored(fitted(runtime, pool, -1.0), runtime, pool[:1])
    probes = list(locality_probes("e0", [*pool[2].locality, *pool[3].locality]))
    with editor.attach(runtime):
        scores = run_probes(runtime, editor, probes, generate=False)
        for score in scores:
            shown = bool(score.probe.query.images)
            assert (editor.rewrite(score.probe.query) != score.probe.query) is shown
            assert (score.values["loc_expkl_answer"] < 1) is shown, "the fact of a picture is not for bare questions"


def test_an_empty_memory_is_the_base_to_the_bit(runtime: Runtime, tmp_path: Path) -> None:
    pool = edits(tmp_path)
    batch = [(of(pool[0]), "7"), (of(pool[1]), "a dog")]
    before = runtime.score(runtime.batch([runtime.encode(*pair) for pair in batch])).logits
    said = runtime.generate([query for query, _ in batch], 4)
    editor = fitted(runtime, pool, -1.0)
    with editor.attach(runtime):
        assert torch.equal(runtime.score(runtime.batch([runtime.encode(*pair) for pair in batch])).logits, before)
        assert runtime.generate([query for query, _ in batch], 4) == said
    stored(editor, runtime, pool[:2])
    with editor.attach(runtime):
        assert not torch.equal(runtime.score(runtime.batch([runtime.encode(*pair) for pair in batch])).logits, before)
        with runtime.base():
            assert torch.equal(runtime.score(runtime.batch([runtime.encode(*pair) for pair in batch])).logits, before)
    assert torch.equal(runtime.score(runtime.batch([runtime.encode(*pair) for pair in batch])).logits, before)
    editor.reset()
    with editor.attach(runtime):
        assert torch.equal(runtime.score(runtime.batch([runtime.encode(*pair) for pair in batch])).logits, before)


def test_the_prompt_is_the_same_whatever_the_target(runtime: Runtime, tmp_path: Path) -> None:
    pool = edits(tmp_path)
    editor = stored(fitted(runtime, pool), runtime, pool)
    asked = (
        [of(edit) for edit in pool] + [Query(edit.images, edit.rephrases[0]) for edit in pool] + [Query((), "why ?")]
    )
    with editor.attach(runtime):
        for query in asked:
            alone = runtime.encode(query).input_ids
            for target in TARGETS:
                assert torch.equal(runtime.encode(query, target).prompt.input_ids, alone)


def test_generation_is_asked_with_the_fact(runtime: Runtime, tmp_path: Path) -> None:
    pool = edits(tmp_path)
    editor = stored(fitted(runtime, pool), runtime, pool)
    asked = [of(edit) for edit in pool]
    with editor.attach(runtime):
        rewritten = [editor.rewrite(query) for query in asked]
        said = runtime.generate(asked, 6)
    assert said == runtime.generate(rewritten, 6)
    assert said != runtime.generate(asked, 6)


def test_the_memory_comes_back_as_it_was_and_two_runs_are_equal(runtime: Runtime, tmp_path: Path) -> None:
    pool = edits(tmp_path)
    random, flags = torch.random.get_rng_state(), [value.requires_grad for value in runtime.model.parameters()]
    first, second = (stored(fitted(runtime, pool), runtime, pool[:3]) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), random)
    assert [value.requires_grad for value in runtime.model.parameters()] == flags
    for one, other in ((first.fitted(), second.fitted()), (first.state_dict(), second.state_dict())):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    loaded = IkeEditor(IkeTuning())
    loaded.load_fitted(first.fitted())
    loaded.load_state_dict(first.state_dict())
    for editor in (first, loaded):
        with editor.attach(runtime):
            editor.edit(EditRequest.of(pool[3]), context(4))
    assert all(torch.equal(first.state_dict()[name], loaded.state_dict()[name]) for name in ("facts", "keys"))
    with loaded.attach(runtime):
        assert [loaded.found(of(edit)).number for edit in pool[:4]] == [1, 2, 3, 4]
    kept = loaded.footprint()
    assert kept.fixed > 0
    assert kept.fitted == 0
    assert loaded.footprint().growing > stored(fitted(runtime, pool), runtime, pool[:3]).footprint().growing


def test_a_corrected_correction_is_forgotten_and_of_two_the_later_counts(runtime: Runtime, tmp_path: Path) -> None:
    pool = edits(tmp_path)
    again = EditRequest("again", of(pool[0]), "red")
    editor = stored(fitted(runtime, pool), runtime, pool[:2])
    with editor.attach(runtime):
        editor.edit(again, context(3))
        assert editor.found(of(pool[0])).target == "red", "of equal ones the later"
        editor.edit(EditRequest.of(pool[3]), EditContext(4, Past.of({n: LastScore(0.0, n) for n in (2, 3)})))
    assert [fact.number for fact in editor._facts] == [2, 3, 4]


def test_only_demonstrations_that_fit_the_context_are_shown(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = edits(tmp_path)
    editor = stored(fitted(runtime, pool, demonstrations=4), runtime, pool[:1])
    query = of(pool[0])
    with editor.attach(runtime):
        whole = editor.rewrite(query).question
        length = len(runtime.encode(query).input_ids)
        monkeypatch.setattr(runtime.prompter, "max_length", length + ROOM - 1)
        fewer = editor.rewrite(query).question
        assert fewer.count("New Fact") == whole.count("New Fact") - 1
        assert len(runtime.encode(query).input_ids) + ROOM <= length + ROOM - 1
        monkeypatch.setattr(runtime.prompter, "max_length", ROOM + 40)
        assert editor.rewrite(query) == query
        outcome = editor.edit(EditRequest.of(pool[1]), context(2))
    assert (outcome.status, outcome.writes) == ("refused", 0)
    assert "longer than the model's context" in outcome.reason
    assert [fact.number for fact in editor._facts] == [1]


def test_a_base_that_does_not_learn_in_context_is_an_obstacle(runtime: Runtime, tmp_path: Path) -> None:
    pool, editor = edits(tmp_path), IkeEditor(IkeTuning())
    with editor.attach(runtime):
        facts = editor.fit(FitData(pool[:3], held_out=pool[3:]))
    assert facts["in context"] == facts["in context, reworded"] == "0 of 2"
    assert facts["obstacle"].startswith("the base does not learn in context: ")
    assert set(editor.bank.texts) == {text for record in pool[:3] for text in demonstrations_of(record)}
    with editor.attach(runtime):
        assert "in context" not in editor.fit(FitData(pool))


def test_a_base_that_learns_in_context_is_none(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, editor = edits(tmp_path), IkeEditor(IkeTuning())
    asked: list[str] = []

    def right(query: Query, target: str) -> bool:
        asked.append(query.question)
        return f"{target}\nPrompt: " in query.question

    monkeypatch.setattr(editor, "_answers", right)
    with editor.attach(runtime):
        facts = editor.fit(FitData(pool[:3], held_out=pool[3:]))
    assert (facts["in context"], facts["in context, reworded"]) == ("2 of 2", "2 of 2")
    assert "obstacle" not in facts
    assert [text.rpartition("Prompt: ")[2] for text in asked[:2]] == [pool[3].question, pool[3].rephrases[0]]


@pytest.mark.parametrize("family", ["blip-2", "blip-2 t5", "qwen2_vl", "paligemma"])
def test_it_works_on_other_families(family: str, tmp_path: Path) -> None:
    model, processor = make_family(family)
    start = 0 if family == "blip-2 t5" else None
    runtime = Runtime(model, Prompter(processor, family_of(family.partition(" ")[0]), decoder_start=start))
    pool, bare = edits(tmp_path, 3), Edit(id="bare", images=(), question="why ?", target="7")
    editor = stored(fitted(runtime, [*pool, bare]), runtime, pool)
    with editor.attach(runtime):
        for number, edit in enumerate(pool, 1):
            assert editor.found(of(edit)).number == number
            assert pool[number - 1].target in editor.rewrite(of(edit)).question
        if family == "paligemma":
            with pytest.raises(DataError, match="no question without an image"):  # a run counts it as refused
                editor.edit(EditRequest.of(bare), context(4))
            assert len(editor.state_dict()["keys"]) == 3
        else:
            editor.edit(EditRequest.of(bare), context(4))
            assert editor.found(Query((), "why ?")).number == 4


def test_a_fact_without_a_picture_is_for_questions_without_one(runtime: Runtime, tmp_path: Path) -> None:
    pool = edits(tmp_path)
    editor = stored(fitted(runtime, pool, -1.0), runtime, pool[:1])
    with editor.attach(runtime):
        outcome = editor.edit(EditRequest("text", Query((), "what is it ?"), "fox"), context(2))
        assert outcome.status in ("learnt", "not-learnt")
        assert editor.found(Query((), "what is it ?")).number == 2
        assert editor.found(of(pool[1])).number == 1


def test_the_threshold_weighs_both_mistakes() -> None:
    inside, outside = torch.tensor([0.9, 0.8, 0.4, -torch.inf]), torch.tensor([0.6, 0.5, 0.2, 0.1])
    both = best_threshold(inside, outside, 0.5)
    assert both.value == pytest.approx(0.7), "halfway between 0.8 and 0.6"
    assert (both.found, both.left_alone) == (0.5, 1.0)
    greedy = best_threshold(inside, outside, 0.9)
    assert greedy.value == pytest.approx(0.3)
    assert (greedy.found, greedy.left_alone) == (0.75, 0.5)
    none = best_threshold(torch.empty(0), torch.empty(0), 0.5)
    assert none.value == OWN, "without anything to choose on, only a fact's own question finds it"


def test_questions_are_sorted_by_whether_they_have_images(tmp_path: Path) -> None:
    pool = edits(tmp_path, 2)
    bare = Edit(id="t", images=(), question="why ?", target="7", locality=(Question("who ?"),))
    shown, text = asked_of([*pool, bare], True), asked_of([*pool, bare], False)
    assert (len(shown.own), len(shown.inside), len(shown.outside)) == (2, 4, 2)
    assert text.own == [Query((), "why ?")]
    assert text.outside == [(0, Query((), "who ?"))]


def test_an_oracle_is_named_and_gives_every_question_the_last_fact(runtime: Runtime, tmp_path: Path) -> None:
    assert IkeEditor(IkeTuning()).constants()["scope"] == "retrieve"
    assert entry_of("ike:oracle").make(EditorOptions(demo_model_dir())).constants()["scope"] == "oracle"
    pool = edits(tmp_path)
    editor = fitted(runtime, pool, 1.0, scope="oracle")
    unrelated = [Query((), "why ?"), Query(pool[3].images, "who is it ?")]
    with editor.attach(runtime):
        assert [editor.rewrite(query) for query in unrelated] == unrelated, "there is no fact yet"
        for number, edit in enumerate(pool[:2], 1):
            editor.edit(EditRequest.of(edit), context(number))
            for query in unrelated:
                asked = editor.rewrite(query)
                assert asked.images == query.images
                assert asked.question.endswith(statement(edit.question, edit.target, query.question))
