"""The check-then-write loop on a tiny LLaVA: what it scores, what it writes, and what it costs."""

from pathlib import Path

import pytest
import torch

from more_cli.core.write import conjugacy
from more_cli.editors import anchors as anchoring
from more_cli.editors.anchors import drift, make_anchor, restore_anchor
from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.memory import Memory
from more_cli.editors.more.editor import MoreEditor
from more_cli.editors.more.passes import Passes
from more_cli.editors.more.rehearsal import EncodedEdits
from more_cli.editors.more.sites import narrow
from more_cli.editors.past import LastScore, Past
from more_cli.model import activations
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_cli.recipe.schema import Recipe
from support.editing import picture

COLOURS = ("red", "blue", "green", "white", "black", "yellow")
TARGETS = ("7", "fox", "a dog", "red", "lazy", "0")


def recipe(**values) -> Recipe:
    base = {"max_write": 1.0, "max_steps": 8, "criterion": "margin", "rehearsal": {"size": 4}}
    base["anchors"] = {"size": 8, "keys": True}
    return Recipe.model_validate(base | values)


def requests(folder: Path) -> list[EditRequest]:
    pairs = zip(COLOURS, TARGETS, strict=True)
    return [EditRequest(c, Query((picture(folder, c),), "what is in the image ?"), t) for c, t in pairs]


def stream(editor: MoreEditor, edits: list[EditRequest]) -> list[EditOutcome]:
    """Apply edits in order with what a session remembers of them."""
    memory = Memory(lambda number: edits[number - 1])
    outcomes = []
    for number, edit in enumerate(edits, 1):
        outcomes.append(editor.edit(edit, memory.context(number, edit.id, edit.target)))
        memory.add(number, edit.id, edit.target)
        memory.update(number, outcomes[-1].margins.items())
    return outcomes


def right(runtime: Runtime, edits: list[EditRequest]) -> int:
    batches = [runtime.batch([runtime.encode(edit.query, edit.target)]) for edit in edits]
    return sum(int(runtime.score(batch).all_right().all()) for batch in batches)


def test_rehearsal_keeps_what_plain_editing_forgets(runtime, sites, tmp_path) -> None:
    held = {}
    for size in (0, 8):
        editor = MoreEditor.fresh(recipe(rehearsal={"size": size, "draws": 30}, max_steps=30), sites)
        with editor.attach(runtime):
            stream(editor, requests(tmp_path))
            held[size] = right(runtime, requests(tmp_path))
    assert held[0] < held[8] == len(TARGETS), held


def test_an_edit_ends_when_the_rehearsed_edits_hold_by_the_margin(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(max_steps=30, rehearsal={"size": 8, "draws": 30}), sites)
    with editor.attach(runtime):
        for outcome in stream(editor, requests(tmp_path)):
            assert outcome.status == "learnt"
            assert min(outcome.margins.values()) >= 1.0


def test_margins_and_cost_are_those_of_the_passes(runtime, sites, tmp_path) -> None:
    edits = requests(tmp_path)
    editor = MoreEditor.fresh(recipe(), sites)
    with editor.attach(runtime):
        outcomes = stream(editor, edits)
        batch = runtime.batch([runtime.encode(edits[-1].query, edits[-1].target)])
        logits = runtime.score(batch).logits[0].double()
    assert [set(outcome.margins) <= set(range(1, n + 1)) for n, outcome in enumerate(outcomes, 1)] == [True] * 6
    others = logits.clone()
    others[range(len(logits)), batch.targets[0]] = -torch.inf
    lead = (logits[range(len(logits)), batch.targets[0]] - others.amax(dim=1)).min()
    assert outcomes[-1].margins[6] == pytest.approx(float(lead), abs=2e-3)
    assert outcomes[0].margins.keys() == {1}
    for outcome in outcomes:
        assert outcome.cost <= outcome.passes <= 3 * outcome.cost + 0.1


def described(
    runtime, sites, folder: Path, question: str, captions: tuple[str, ...], anchors: int = 1
) -> tuple[MoreEditor, float]:
    """Correct one answer beside an anchor; return the editor and the target's NLL under a prompt that no write has."""
    editor = MoreEditor.fresh(recipe(captions=captions, rehearsal={"size": 0}, anchors={"size": anchors}), sites)
    image = picture(folder, "red")
    with editor.attach(runtime):
        editor.hold([make_white(runtime, folder)], fresh=True)
        editor.edit(EditRequest("e", Query((image,), question), "a dog"), EditContext())
        batch = runtime.batch([runtime.encode(Query((image,), "a picture of"), "a dog")])
        return editor, float(runtime.score(batch).nll().mean())


def test_a_description_is_learnt_in_other_words(runtime, sites, tmp_path) -> None:
    captions = "describe the picture", "write a caption"
    _, without = described(runtime, sites, tmp_path, "a photo of", ())
    _, known = described(runtime, sites, tmp_path, "a photo of", captions)
    assert known < without - 0.1, (known, without)


def test_without_anchors_a_description_is_written_under_its_own_prompt_alone(runtime, sites, tmp_path) -> None:
    first, second = (
        described(runtime, sites, tmp_path, "a photo of", captions, anchors=0)[0].state_dict()
        for captions in ((), ("describe the picture",))
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_answer_that_is_no_description_is_written_under_its_own_question_alone(runtime, sites, tmp_path) -> None:
    first, second = (
        described(runtime, sites, tmp_path, "how many are in the picture ?", captions)[0].state_dict()
        for captions in ((), ("describe the picture",))
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_lone_edit_needs_one_pass_a_write(runtime, sites, tmp_path, monkeypatch) -> None:
    """Without rehearsal and anchors the pass that checks is the one that is differentiated."""
    calls = []
    original = Runtime._forward
    monkeypatch.setattr(Runtime, "_forward", lambda self, batch: (calls.append(len(batch)), original(self, batch))[1])
    editor = MoreEditor.fresh(recipe(rehearsal={"size": 0}, halvings=0), sites)
    with editor.attach(runtime):
        (outcome,) = stream(editor, requests(tmp_path)[:1])
    assert calls == [1] * (outcome.writes + 1)
    assert outcome.passes == outcome.writes + 1


def test_a_large_batch_is_written_in_parts(runtime, sites, tmp_path, monkeypatch) -> None:
    edits = requests(tmp_path)
    states = []
    sizes: list[set[int]] = []
    original = Runtime._forward
    monkeypatch.setattr(Runtime, "_forward", lambda self, batch: (sizes[-1].add(len(batch)), original(self, batch))[1])
    for bound in (activations.PART, 1):
        sizes.append(set())
        monkeypatch.setattr(activations, "PART", bound)
        editor = MoreEditor.fresh(recipe(max_steps=2, margin=50.0), sites)
        with editor.attach(runtime):
            asked = [make_anchor(runtime, Query((picture(tmp_path, "white"),), "a photo of"), None)] * 3
            editor.hold(asked)
            stream(editor, edits[:4])
        states.append(editor.state_dict())
    assert max(sizes[0]) > 1
    assert sizes[1] == {1}
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], atol=2e-4, rtol=2e-3)


def test_visual_share_splits_the_predicted_decrease(runtime, sites, tmp_path) -> None:
    """First order: each modality's write removes its own part of the loss."""
    edit = requests(tmp_path)[0]
    for share in (0.1, 0.4):
        editor = MoreEditor.fresh(recipe(visual_share=share, max_write=1e9), sites)
        with editor.attach(runtime):
            passes = Passes(EditContext(1), editor._attached, editor.recipe, [make_white(runtime, tmp_path)], 1.0)
            passes.model.encoded.put(1, edit)
            loss = passes.gradient([1])
            gradients = {site.record.name: site.branch.gradient() for site in editor.sites}
            steps = editor.sites.steps(loss, editor.recipe)
            removed = {"text": 0.0, "visual": 0.0}
            for site in editor.sites:
                name = site.record.name
                removed[site.record.modality] -= gradients[name].inner(steps[name].B)
        assert removed["visual"] == pytest.approx(share * loss, rel=1e-4)
        assert removed["text"] == pytest.approx((1 - share) * loss, rel=1e-4)


@pytest.mark.parametrize(("projector", "factor"), [((96, 96), 1.0), ((32, 96), 1.0), ((384, 384), 0.25), ((), 1.0)])
def test_a_projector_that_is_wider_than_the_text_model_gets_less_of_the_loss(projector, factor, sites) -> None:
    editor = MoreEditor.fresh(recipe(), sites)
    text, visual = ([r for r in editor.records if r.modality == modality] for modality in ("text", "visual"))
    text = [record.model_copy(update={"shape": (384, width)}) for record, width in zip(text, (96, 384), strict=False)]
    wide = [visual[0].model_copy(update={"shape": (96, width)}) for width in projector]
    assert narrow([*text, *wide]) == factor


@pytest.mark.parametrize("share", [None, 0.3])
def test_a_second_write_is_conjugate_to_the_first_one(runtime, sites, tmp_path, share) -> None:
    """Together over the sites that share a step length, of which it is a Polyak step like any other."""
    editor, edits = (
        MoreEditor.fresh(recipe(visual_share=share, max_write=1e9, conjugate=0.7), sites),
        requests(tmp_path),
    )
    with editor.attach(runtime):
        passes = two_edits(editor, edits)
        first = passes.steps([1])
        passes.write([1], first, [2])
        loss = passes.gradient([1])
        plain, turned = editor.sites.steps(loss, editor.recipe), editor.sites.steps(loss, editor.recipe, first)
        gradients = {site.record.name: site.branch.gradient() for site in editor.sites}
        for modalities in (["text"], ["visual"]) if share else (["text", "visual"],):
            names = [site.record.name for site in editor.sites if site.record.modality in modalities]
            slope, before = (sum(steps[name].slope for name in names) for steps in (plain, first))
            after = sum(float(gradients[name].inner(first[name].B)) for name in names)
            beta = conjugacy(-slope, before, after, 0.7)
            expected = {name: plain[name].B + beta * first[name].B for name in names}
            scale = slope / sum(float(gradients[name].inner(expected[name])) for name in names)
            assert beta > 0
            for name in names:
                torch.testing.assert_close(turned[name].B, scale * expected[name], atol=1e-6, rtol=1e-3)


def test_a_write_of_other_edits_starts_anew(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(conjugate=0.7), sites)
    with editor.attach(runtime):
        passes = two_edits(editor, requests(tmp_path))
        passes.write([1], passes.steps([1]), [2])
        for chosen, same in (([1], False), ([1, 2], True)):
            anew = editor.sites.steps(passes.gradient(chosen), editor.recipe)
            steps = passes.steps(chosen)
            assert all(torch.equal(steps[name].B, anew[name].B) for name in anew) is same


def two_edits(editor: MoreEditor, edits: list[EditRequest]) -> Passes:
    """Return the passes of the first of two edits, both scored."""
    passes = editor._passes_of(edits[0], EditContext(1, recall=lambda number: edits[number - 1]))
    passes.model.encoded.put(1, edits[0])
    passes.begin()
    passes.scores = passes.score([1, 2])
    return passes


def make_white(runtime: Runtime, folder: Path):
    return make_anchor(runtime, Query((picture(folder, "white"),), "a photo of"), None)


def test_anchors_hold_the_base(runtime, sites, tmp_path) -> None:
    edits = requests(tmp_path)[:3]
    moved = {}
    for held in (False, True):
        editor = MoreEditor.fresh(recipe(), sites)
        with editor.attach(runtime):
            asked = [make_white(runtime, tmp_path)]
            assert float(drift(runtime.score(runtime.batch([asked[0].encoded])), asked)) == pytest.approx(0, abs=1e-6)
            editor.hold(asked if held else [])
            stream(editor, edits)
            moved[held] = float(drift(runtime.score(runtime.batch([asked[0].encoded])), asked))
    assert moved[True] < 0.5 * moved[False]


def test_an_anchor_comes_back_from_its_cache(runtime, sites, tmp_path) -> None:
    query = Query((picture(tmp_path, "white"),), "a photo of")
    with runtime.attached([]):
        for answer in (None, "a dog"):
            made = make_anchor(runtime, query, answer)
            again = restore_anchor(runtime, query, made.tokens, made.base)
            assert torch.equal(made.encoded.input_ids, again.encoded.input_ids)
            assert made.encoded.target == again.encoded.target
            assert made.base.shape == (len(made.tokens), len(runtime.prompter.tokenizer))
    assert len(make_tokens(runtime, query)) <= anchoring.ANSWER_TOKENS


def make_tokens(runtime: Runtime, query: Query) -> list[int]:
    with runtime.attached([]):
        return make_anchor(runtime, query, None).tokens.tolist()


def test_an_anchor_has_the_keys_of_the_base_whatever_was_written(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(), sites)
    query = Query((picture(tmp_path, "white"),), "a photo of")
    with editor.attach(runtime):
        before = make_anchor(runtime, query, None, editor.sites.keys).keys
        stream(editor, requests(tmp_path)[:1])
        after = make_anchor(runtime, query, None, editor.sites.keys).keys
        plain = make_anchor(runtime, query, None)
        written = editor._key(plain)
        with editor.sites.undone():
            editor.sites.clear()
            alone = editor._key(plain)
    for name in alone:
        assert torch.equal(before[name], after[name])
        assert torch.equal(before[name], alone[name])
    assert any(not torch.equal(before[name], written[name]) for name in alone)


def test_anchor_keys_enter_p_and_settle_lambda(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(), sites)
    with editor.attach(runtime):
        anchors = [
            make_anchor(runtime, Query((picture(tmp_path, colour),), "a photo of"), None) for colour in COLOURS[:3]
        ]
        editor.start_from(anchors)
        keys = []
        for anchor in anchors:
            batch = runtime.batch([anchor.encoded])
            runtime.score(batch, record=True)
            keys.append(editor.sites.keys(batch))
    for record in editor.records:
        energy = torch.stack([key[record.name] for key in keys]).square().sum(dim=1).mean()
        assert record.ridge == pytest.approx(0.02 * float(energy), rel=1e-6)
        assert record.keys == 3


def test_consolidation_restores_forgotten_edits(runtime, sites, tmp_path) -> None:
    edits = requests(tmp_path)
    editor = MoreEditor.fresh(recipe(rehearsal={"size": 0}), sites)
    with editor.attach(runtime):
        stream(editor, edits)
        lost = len(edits) - right(runtime, edits)
        done = editor.consolidate(range(1, 7), EditContext(7, recall=lambda number: edits[number - 1]))
        assert lost > 0
        assert right(runtime, edits) == len(edits) - len(done.failing) == len(edits)
    assert set(done.margins) == set(range(1, 7))
    assert done.writes >= 1


def test_a_replay_draws_and_writes_the_same(runtime, sites, tmp_path) -> None:
    states = []
    for _ in range(2):
        editor = MoreEditor.fresh(recipe(), sites)
        with editor.attach(runtime):
            editor.hold([make_white(runtime, tmp_path)])
            stream(editor, requests(tmp_path))
        states.append(editor.state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_encoded_edits_stay_within_their_bytes(runtime, tmp_path, monkeypatch) -> None:
    edits = requests(tmp_path)
    context = EditContext(9, recall=lambda number: edits[number - 1])
    kept = EncodedEdits(runtime)
    first = kept.get(1, context)
    monkeypatch.setattr("more_cli.editors.more.rehearsal.CACHE_BYTES", 2 * first.bytes + 100)
    for number in (1, 2, 3, 1):
        assert torch.equal(
            kept.get(number, context).input_ids,
            runtime.encode(edits[number - 1].query, edits[number - 1].target).input_ids,
        )
    assert list(kept._encoded) == [3, 1]
    assert kept._bytes == sum(encoded.bytes for encoded in kept._encoded.values())
    kept.put(1, edits[0])
    assert kept._bytes == sum(encoded.bytes for encoded in kept._encoded.values())
    kept.keep_only(Past.of({1: LastScore(0.0, 1), 2: LastScore(0.0, 2)}))
    assert list(kept._encoded) == [1]
    assert kept._bytes == kept._encoded[1].bytes


def test_the_margin_loss_is_the_nll_with_lowered_targets(runtime, sites, tmp_path) -> None:
    """Against plain torch, in float64; and it is what a write follows."""
    edit = requests(tmp_path)[2]
    batch = runtime.batch([runtime.encode(edit.query, edit.target)])
    scored = runtime.score(batch)
    logits = scored.logits[0].double()
    lowered = logits.scatter_add(1, batch.targets[0][:, None], torch.full((len(logits), 1), -2.0, dtype=torch.float64))
    expected = torch.nn.functional.cross_entropy(lowered, batch.targets[0])
    assert float(scored.nll(2.0)) == pytest.approx(float(expected), rel=1e-5)
    assert float(scored.nll()) < float(scored.nll(2.0))
    writes = {}
    for loss in ("nll", "margin"):
        editor = MoreEditor.fresh(recipe(loss=loss, margin=3.0, max_steps=30, rehearsal={"size": 0}), sites)
        with editor.attach(runtime):
            (outcome,) = stream(editor, [edit])
        assert outcome.margins[1] >= 3.0
        writes[loss] = outcome.writes
    assert writes["margin"] < writes["nll"], writes
