"""SERAC: what it keeps, when it answers instead of the base, and that it does so alike in scores and generations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from more_cli.demo.files import demo_model_dir
from more_cli.editors.base import EditContext, EditRequest, FitData
from more_cli.editors.past import LastScore, Past
from more_cli.editors.registry import EditorOptions, entry_of
from more_cli.errors import StateError
from more_cli.inputs.edits import Edit
from more_cli.model.batches import Encoded, Query
from more_cli.model.families import family_of
from more_cli.model.loading import decoder_start
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from more_lab.editors.serac.editor import SeracEditor
from more_lab.editors.serac.examples import random_target
from more_lab.editors.serac.nets import Words, codes, make_nets
from more_lab.editors.serac.tuning import SeracTuning
from support.editing import an_edit, picture, requests
from support.tiny import make_model, make_processor
from support.tiny_families import make_family

ALWAYS = -1e9
"""A threshold below every similarity."""
SMALL: dict[str, Any] = {"width": 32, "batch": 3, "variants": 1}


def family(name: str) -> Runtime:
    if name == "llava":
        processor = make_processor()
        return Runtime(make_model(processor.tokenizer, text_layers=3, seed=0).eval(), Prompter(processor))
    model, processor = make_family(name)
    start = decoder_start(model.config.get_text_config(decoder=True))
    return Runtime(model, Prompter(processor, family_of(model.config.model_type), decoder_start=start))


@pytest.fixture(scope="module", params=["llava", "blip-2"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return family(request.param)


def untrained(**values: Any) -> SeracEditor:
    """An editor with initial weights, as a fit of no use leaves it."""
    editor = SeracEditor(SeracTuning(**(SMALL | values)))
    editor.load_fitted(dict(make_nets(64, editor.tuning).state_dict()))
    return editor


def pool(folder: Path) -> list[Edit]:
    first = an_edit(folder)
    others = [("blue", "fox", "what colour is it ?"), ("white", "a dog", "who is it ?")]
    return [first] + [
        replace(first, id=target, images=(picture(folder, colour),), question=question, target=target)
        for colour, target, question in others
    ]


def edited(editor: SeracEditor, asked: Sequence[EditRequest]) -> None:
    for number, request in enumerate(asked, 1):
        past = Past.of({n: LastScore(0.0, n) for n in range(1, number)})
        assert editor.edit(request, EditContext(number, past)).writes == 1


def test_random_targets_hold_no_control_token(runtime: Runtime) -> None:
    """Also none that only the tokenizer's list of added tokens calls special, as BLIP2's `<image>`."""
    tokenizer = runtime.prompter.tokenizer
    control = {token for token, content in tokenizer.added_tokens_decoder.items() if content.special}
    drawn = [token for record in range(200) for token in random_target(runtime, 0, record, 0, 8)[:-1]]
    assert len(set(drawn)) > 20
    assert not control & set(drawn)


def test_an_empty_memory_leaves_the_base_bit_for_bit(runtime: Runtime, tmp_path: Path) -> None:
    (request, *_) = requests(tmp_path, 1)
    batch, editor = runtime.batch([runtime.encode(request.query, request.target)]), untrained(none=ALWAYS)
    before = runtime.score(batch).logits
    random = torch.random.get_rng_state()
    with editor.attach(runtime):
        assert torch.equal(runtime.score(batch).logits, before)
        edited(editor, [request])
        assert not torch.equal(runtime.score(batch).logits, before), "the memory acts"
        with runtime.base():
            assert torch.equal(runtime.score(batch).logits, before)
    assert torch.equal(runtime.score(batch).logits, before)
    editor.reset()
    with editor.attach(runtime):
        assert torch.equal(runtime.score(batch).logits, before)
    assert torch.equal(torch.random.get_rng_state(), random)


def test_the_route_is_the_same_whatever_the_target(runtime: Runtime, tmp_path: Path, monkeypatch) -> None:
    asked, seen = requests(tmp_path, 3), list[tuple[Any, ...]]()
    routes = SeracEditor.routes

    def listened(self: SeracEditor, prompts: Sequence[Encoded]) -> Sequence[int | None]:
        found = routes(self, prompts)
        seen.append((tuple(found), *(tuple(prompt.input_ids.tolist()) for prompt in prompts)))
        assert not any(len(prompt.target) for prompt in prompts)
        return found

    editor = untrained(none=ALWAYS)
    with editor.attach(runtime):
        edited(editor, asked)
        monkeypatch.setattr(SeracEditor, "routes", listened)
        for request in asked:
            seen.clear()
            for target in ("7", "fox", "a dog on a green table", "x"):
                runtime.score(runtime.batch([runtime.encode(request.query, target)]))
            runtime.generate([request.query], 2)
            assert len(seen) == 5
            assert len(set(seen)) == 1
            assert seen[0][0] != (None,)


def test_a_generated_answer_is_the_forced_one(runtime: Runtime, tmp_path: Path) -> None:
    """Every step uses the prompt's route, and the tokens so far; rows of other lengths stand beside it."""
    asked, editor = requests(tmp_path, 2), untrained(none=ALWAYS)
    queries = [asked[0].query, Query(asked[1].query.images, "is it a dog ?")]
    with editor.attach(runtime):
        edited(editor, asked)
        answers = runtime.generate(queries, 5)
        for query, answer in zip(queries, answers, strict=True):
            forced = runtime.score(runtime.batch([runtime.encode(query).followed_by(answer)]))
            assert forced.predicted()[0].tolist() == answer
        with runtime.base():
            assert runtime.generate(queries, 5) != answers


def test_rows_act_alone_and_rows_without_a_route_are_the_bases(runtime: Runtime, tmp_path: Path) -> None:
    (request, *_), editor = requests(tmp_path, 1), untrained(none=ALWAYS)
    other = runtime.encode(Query((picture(tmp_path, "blue"),), "what colour is it ? what is in the image ?"), "a dog")
    pair = [runtime.encode(request.query, request.target), other]
    before = runtime.score(runtime.batch(pair)).logits
    with editor.attach(runtime):
        edited(editor, [request])
        both = runtime.score(runtime.batch(pair))
        for row, sample in enumerate(pair):
            alone = runtime.score(runtime.batch([sample]))
            torch.testing.assert_close(both.logits[row][both.mask[row]], alone.logits[0], atol=1e-4, rtol=1e-4)
        routes = editor.routes
        editor.routes = lambda prompts: [*routes(prompts)[:1], None][: len(prompts)]  # type: ignore[method-assign]
        after = runtime.score(runtime.batch(pair)).logits
    assert torch.equal(after[1], before[1])
    assert not torch.equal(after[0], before[0])


def test_text_without_an_image_is_corrected_and_asked(runtime: Runtime) -> None:
    request, editor = EditRequest("t", Query((), "who is it ?"), "fox"), untrained(none=ALWAYS)
    with editor.attach(runtime):
        edited(editor, [request])
        (answer,) = runtime.generate([request.query], 3)
        forced = runtime.score(runtime.batch([runtime.encode(request.query).followed_by(answer)]))
    assert forced.predicted()[0].tolist() == answer
    size = runtime.model.config.get_text_config(decoder=True).hidden_size
    kept = editor.state_dict()["1.embeddings"]
    assert kept.shape == (len(runtime.encode(request.query, "fox").input_ids), size)


def test_it_learns_to_repeat_a_correction_and_to_leave_the_rest(tmp_path: Path) -> None:
    runtime, edits = family("llava"), pool(tmp_path)
    editor = SeracEditor(SeracTuning(iterations=120, rate=3e-3, **SMALL))
    with editor.attach(runtime):
        facts = editor.fit(FitData(edits))
        assert facts["iterations"] == 120
        edited(editor, [EditRequest.of(edit) for edit in edits])
        for number, edit in enumerate(edits, 1):
            batch = runtime.batch([runtime.encode(Query(edit.images, edit.question), edit.target)])
            assert bool(runtime.score(batch).all_right()[0])
            asked = [Query(edit.images, edit.rephrases[0]), Query(edit.image_rephrases, edit.question)]
            assert editor.routes([runtime.encode(query) for query in asked[:1]]) == [number]
        probe = Query((), edits[0].locality[0].question)
        assert editor.routes([runtime.encode(probe)]) == [None]


def test_a_second_run_gives_the_same_bytes_and_a_state_comes_back(runtime: Runtime, tmp_path: Path) -> None:
    edits, asked, found = pool(tmp_path), requests(tmp_path, 2), []
    for _ in range(2):
        editor = SeracEditor(SeracTuning(iterations=3, none=ALWAYS, **SMALL))
        with editor.attach(runtime):
            editor.fit(FitData(edits))
            edited(editor, asked)
            logits = runtime.score(runtime.batch([runtime.encode(asked[0].query, "7")])).logits
        found.append((editor, editor.fitted() | editor.state_dict(), logits))
    (editor, first, logits), (_, second, _) = found
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = SeracEditor(editor.tuning)
    other.load_fitted(editor.fitted())
    other.load_state_dict(editor.state_dict())
    assert other.footprint() == editor.footprint()
    assert other.footprint().growing > 0 == other.footprint().fixed
    with other.attach(runtime):
        assert torch.equal(runtime.score(runtime.batch([runtime.encode(asked[0].query, "7")])).logits, logits)


def test_an_interrupted_fit_continues_to_the_same_bytes(tmp_path: Path) -> None:
    runtime, edits, tuning = family("llava"), pool(tmp_path), SeracTuning(iterations=4, **SMALL)
    saved: list[dict[str, torch.Tensor]] = []
    whole, rest = SeracEditor(tuning), SeracEditor(tuning)
    with whole.attach(runtime):
        whole.fit(FitData(edits, save=lambda tensors: saved.append({n: t.clone() for n, t in tensors().items()})))
    with rest.attach(runtime):
        rest.fit(FitData(edits, load=lambda: saved[1]))
    assert all(torch.equal(value, rest.fitted()[name]) for name, value in whole.fitted().items())


def test_a_correction_that_no_longer_stands_is_dropped(tmp_path: Path) -> None:
    runtime, asked, editor = family("llava"), requests(tmp_path, 2), untrained()
    with editor.attach(runtime):
        editor.edit(asked[0], EditContext(1))
        editor.edit(asked[1], EditContext(2))
    assert {name.partition(".")[0] for name in editor.state_dict()} == {"2"}


def test_small_networks_keep_to_their_share_and_are_told_no_places(tmp_path: Path) -> None:
    runtime, edits = family("llava"), pool(tmp_path)
    editor = SeracEditor(SeracTuning(share=0.4, copier=False, iterations=2))
    with editor.attach(runtime):
        facts = editor.fit(FitData(edits))
        edited(editor, requests(tmp_path, 1))
    most = 0.4 * sum(weight.numel() for weight in runtime.model.parameters())
    wider = make_nets(64, SeracTuning(width=facts["width"] + 8))
    assert facts["parameters"] <= most < sum(weight.numel() for weight in wider.parameters())
    assert sum(value.numel() for value in editor.fitted().values()) == facts["parameters"]
    labels = editor.nets.counterfactual._labels(Words(torch.zeros(5, 4), 2), Words(torch.zeros(3, 4), 1))
    assert torch.equal(labels, codes(torch.arange(8), facts["width"])), "a token's place in the sequence, nothing else"
    other = entry_of("serac:small").make(EditorOptions(demo_model_dir()))
    assert (other.constants()["share"], other.constants()["copier"]) == (0.03, False)
    other.load_fitted(editor.fitted())
    assert other.nets.counterfactual.width == facts["width"]


def test_models_that_do_not_read_one_sequence_are_refused() -> None:
    with pytest.raises(StateError, match="encoder-decoder"), untrained().attach(family("blip-2 t5")):
        pass


def test_places_in_the_answer() -> None:
    words = Words(torch.zeros(5, 4), 2)
    assert words.steps.tolist() == [0, 0, 0, 1, 2]
    assert words.next_steps.tolist() == [0, 0, 1, 2, 3], "the last token of the prompt predicts the answer's first"
    assert Words(torch.zeros(2, 4)).next_steps.tolist() == [0, 1]
    assert len({tuple(code) for code in codes(torch.arange(600), 8).tolist()}) == 600
