"""AlphaEdit, MEMIT and ROME on tiny models: values, keys, writes, and what they leave as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from more_cli.demo.files import demo_model_dir
from more_cli.editors.base import EditContext, EditRequest, FitData
from more_cli.editors.past import LastScore, Past
from more_cli.editors.registry import EditorOptions, entry_of
from more_cli.errors import StateError
from more_cli.model.batches import Query
from more_cli.model.families import family_of
from more_cli.model.loading import decoder_start
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from more_lab.editors.batched import Batched
from more_lab.editors.locate.alphaedit import AlphaEditor, AlphaEditTuning
from more_lab.editors.locate.base import LocateEditor
from more_lab.editors.locate.deltaedit import NOISE, DeltaEditor, DeltaEditTuning, occupied
from more_lab.editors.locate.memit import MemitEditor, MemitTuning, RomeEditor, RomeTuning
from more_lab.editors.locate.pool import Material
from more_lab.editors.locate.solve import outside
from more_lab.editors.locate.values import ValueTuning, find_value
from more_lab.editors.work import Work
from support.editing import picture, requests
from support.locating import fitted, pool
from support.tiny_families import make_family

EDITORS = ("alphaedit", "alphaedit-low-rank", "memit", "rome", "deltaedit")
LAST = "model.language_model.layers.3"


def made(name: str, **values) -> LocateEditor:
    # Random weights spread their logits less than trained ones: the clamps are wide.
    numbers = {"clamp": 8.0, "steps": 40, "neutral": 2, "contexts": 1} | values
    if name == "memit":
        return MemitEditor(MemitTuning.model_validate({"weight": 1e-3} | numbers))
    if name == "rome":
        return RomeEditor(RomeTuning.model_validate(numbers))
    if name == "deltaedit":
        return DeltaEditor(DeltaEditTuning.model_validate({"share": 0.9, "ridge": 1e-3} | numbers))
    solve = "low_rank" if name.endswith("low-rank") else "full"
    return AlphaEditor(AlphaEditTuning.model_validate({"solve": solve, "share": 0.9, "ridge": 1e-3} | numbers))


def past_of(*numbers: int) -> Past:
    return Past.of({number: LastScore(0.0, number) for number in numbers})


@pytest.fixture(scope="module")
def blip2() -> Runtime:
    model, processor = make_family("blip-2")
    start = decoder_start(model.config.get_text_config(decoder=True))
    return Runtime(model, Prompter(processor, family_of(model.config.model_type), decoder_start=start))


@pytest.mark.parametrize("last_prompt", [False, True])
def test_the_value_is_what_a_plain_hook_needs_to_add(runtime: Runtime, tmp_path: Path, last_prompt: bool) -> None:
    request = requests(tmp_path, 3)[2]
    encoded = runtime.encode(request.query, request.target)
    tuning = ValueTuning(clamp=8.0, decay=0.0, stop=0.5)
    work = Work()
    path = "model.language_model.layers.1"
    found = find_value(runtime, path, [encoded], [], tuning, work, last_prompt=last_prompt)
    start, stop = encoded.target.start - 1, encoded.target.stop - 1
    places = slice(start, start + 1) if last_prompt else slice(start, stop)
    assert found.delta.shape[0] == (1 if last_prompt else len(encoded.target))
    assert 0 < found.steps <= tuning.steps
    assert not runtime.model.get_submodule(path)._forward_hooks

    def add(module, args, output):
        hidden = (output if isinstance(output, torch.Tensor) else output[0]).clone()
        hidden[0, places] += found.delta
        return hidden if isinstance(output, torch.Tensor) else (hidden, *output[1:])

    before = runtime.score(runtime.batch([encoded])).nll()
    handle = runtime.model.get_submodule(path).register_forward_hook(add)
    nll = float(runtime.score(runtime.batch([encoded])).nll())
    handle.remove()
    if found.loss < tuning.stop:
        assert nll == pytest.approx(found.loss, abs=1e-4)
    assert nll < float(before)


def test_a_search_with_all_its_terms_is_a_plain_loop(runtime: Runtime) -> None:
    """NLL over all ways to ask, KL(now || before) of neutral questions, decay and clamp, at the prompt's last token."""
    asked = [runtime.encode(Query((), question), "brown fox") for question in ("why ?", "a dog . why ?")]
    neutral = [runtime.encode(Query((), "is it a dog ?")).followed_by([runtime.prompter.eos])]
    batch, path = runtime.batch([*asked, *neutral]), "model.language_model.layers.1"
    (output,) = runtime.read(asked[:1], [(path, "output")])[0]
    norm, rows = output[asked[0].target.start - 1].norm(), torch.arange(3)
    places, delta = batch.answer.int().argmax(dim=1), torch.zeros(output.shape[1], requires_grad=True)

    def add(module, args, output):
        hidden = (output if isinstance(output, torch.Tensor) else output[0]).clone()
        hidden[rows, places] += delta
        return hidden if isinstance(output, torch.Tensor) else (hidden, *output[1:])

    tuning = ValueTuning(steps=6, rate=0.5, stop=0.0, decay=3.0, kl=2.0, clamp=0.4)
    optimiser = torch.optim.Adam([delta], lr=0.5 * float(norm) / len(delta) ** 0.5)
    clamped, before, told = 0, None, torch.tensor(asked[0].target_ids)
    for _ in range(tuning.steps):
        handle = runtime.model.get_submodule(path).register_forward_hook(add)
        now = runtime.model(**batch.inputs, use_cache=False).logits.log_softmax(dim=-1)
        handle.remove()
        nll = [-now[row, places[row] : places[row] + len(told)].gather(1, told[:, None]).mean() for row in (0, 1)]
        left = now[2, places[2]]
        before = left.detach() if before is None else before
        divergence = (left.exp() * (left - before)).sum()
        loss = sum(nll) / 2 + 2.0 * divergence + 3.0 * (delta.square().sum() + 1e-24).sqrt() / norm**2
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            clamped += int(delta.norm() > 0.4 * norm)
            delta *= min(1.0, float(0.4 * norm / delta.norm()))
    found = find_value(runtime, path, asked, neutral, tuning, Work(), last_prompt=True)
    assert clamped
    torch.testing.assert_close(found.delta[0], delta.detach(), rtol=1e-3, atol=1e-4)


def test_the_clamp_bounds_every_delta(runtime: Runtime, tmp_path: Path) -> None:
    request = requests(tmp_path, 3)[2]
    encoded = runtime.encode(request.query, request.target)
    (output,) = runtime.read([encoded], [(LAST, "output")])[0]
    norms = output[encoded.target.start - 1 : encoded.target.stop - 1].norm(dim=1)
    found = find_value(runtime, LAST, [encoded], [], ValueTuning(clamp=0.1, stop=0.0), Work(), last_prompt=False)
    torch.testing.assert_close(found.delta.norm(dim=1), 0.1 * norms, rtol=1e-3, atol=1e-5)


def test_neutral_questions_hold_the_value_back(runtime: Runtime, tmp_path: Path) -> None:
    request = requests(tmp_path, 1)[0]
    encoded = runtime.encode(request.query, request.target)
    neutral = runtime.encode(Query((), "is it a dog ?")).followed_by([runtime.prompter.eos])
    norms = []
    for kl in (0.0, 10.0):
        tuning = ValueTuning(clamp=8.0, kl=kl, stop=0.0, decay=0.0)
        found = find_value(runtime, LAST, [encoded], [neutral], tuning, Work(), last_prompt=False)
        norms.append(float(found.delta[0].norm()))
    assert norms[1] < 0.8 * norms[0]


@pytest.mark.parametrize("family", ["llava", "blip2"])
@pytest.mark.parametrize("name", EDITORS)
def test_an_edit_is_learnt_and_can_be_removed_completely(request, tmp_path: Path, name: str, family: str) -> None:
    runtime = request.getfixturevalue("runtime" if family == "llava" else "blip2")
    editor = made(name)
    facts = fitted(editor, runtime, tmp_path)
    assert facts["records"] == 4
    asked = [*requests(tmp_path, 2), EditRequest("text", Query((), "is it a dog ?"), "brown")]
    batch = runtime.batch([runtime.encode(one.query, one.target) for one in asked])
    before, random = runtime.score(batch).logits, torch.random.get_rng_state()
    with editor.attach(runtime):
        assert torch.equal(runtime.score(batch).logits, before), "an editor without edits changes no bit"
        first = editor.edit(asked[0], EditContext(1))
        outcomes = [editor.edit(one, EditContext(number)) for number, one in enumerate(asked[1:], 2)]
        edited = runtime.score(batch).logits
        with runtime.base():
            assert torch.equal(runtime.score(batch).logits, before)
    assert first.status == "learnt", first
    assert all(outcome.status in {"learnt", "not-learnt"} for outcome in outcomes)
    assert torch.equal(runtime.score(batch).logits, before)
    assert torch.equal(torch.random.get_rng_state(), random)
    kept = editor.state_dict()
    assert editor.footprint().fixed + editor.footprint().growing == sum(value.nbytes for value in kept.values())

    # Another editor with the same fit: the same edits make the same bytes, from the start and from a kept state.
    other = made(name)
    other.load_fitted(editor.fitted())
    with other.attach(runtime):
        other.edit(asked[0], EditContext(1))
        middle = {key: value.clone() for key, value in other.state_dict().items()}
    other.reset()
    assert not other.state_dict()
    with other.attach(runtime):
        assert torch.equal(runtime.score(batch).logits, before)
    other.load_state_dict(middle)
    with other.attach(runtime):
        for number, one in enumerate(asked[1:], 2):
            other.edit(one, EditContext(number))
        assert torch.equal(runtime.score(batch).logits, edited)
    assert kept.keys() == other.state_dict().keys()
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in kept.items())


def test_the_protected_outputs_do_not_move(runtime: Runtime, tmp_path: Path) -> None:
    """With fewer keys than inputs, what the pool's own inputs make of an edited layer stays, to 1e-6."""
    editor, asked = made("alphaedit", share=1.0, contexts=0), requests(tmp_path, 2)
    edits = pool(tmp_path)[-1:]
    fitted(editor, runtime, tmp_path, edits)
    told = runtime.encode(Query((), edits[0].question), edits[0].target)
    path, batch = f"{LAST}.mlp.down_proj", runtime.batch([told])
    keys, before = runtime.read([told], [(path, "input"), (path, "output")])[0]
    logits = runtime.score(batch).logits
    with editor.attach(runtime):
        outcome = editor.edit(asked[0], EditContext())
        after = runtime.read([told], [(path, "output")])[0][0]
        Delta = editor.deltas[path].value.double()
        torch.testing.assert_close(runtime.score(batch).logits, logits, atol=1e-5, rtol=1e-5)
    assert outcome.after.right
    assert Delta.norm() > 0.1
    V = editor._protected[path]
    assert V.shape[1] < V.shape[0]
    for K0 in (V, keys.double().T):
        assert (Delta @ K0).norm() / (Delta.norm() * K0.norm()) < 1e-6
    assert (after - before).norm() < 1e-6 * max(1.0, float(before.norm()))


def test_a_write_leaves_less_than_a_twentieth_of_the_residual(runtime: Runtime, tmp_path: Path, monkeypatch) -> None:
    editor, shares = made("alphaedit", first=0.5), []
    fitted(editor, runtime, tmp_path)
    change = AlphaEditor._change

    def measured(self, path, keys, residual):
        Delta = change(self, path, keys, residual)
        shares.append(float((Delta @ keys - residual).norm() / residual.norm()))
        return Delta

    monkeypatch.setattr(AlphaEditor, "_change", measured)
    with editor.attach(runtime):
        editor.edit(requests(tmp_path, 3)[2], EditContext())
    assert len(shares) == 2
    assert max(shares) < 0.05


def test_keys_of_earlier_edits_are_kept_and_protect_them(runtime: Runtime, tmp_path: Path) -> None:
    first, second = requests(tmp_path, 2)
    path, moved = f"{LAST}.mlp.down_proj", []
    for forgets in (False, True):
        editor = made("alphaedit", contexts=0)
        fitted(editor, runtime, tmp_path)
        encoded = runtime.encode(first.query, first.target)
        places = slice(encoded.target.start - 1, encoded.target.stop - 1)
        with editor.attach(runtime):
            editor.edit(first, EditContext(1))
            keys = runtime.read([encoded], [(path, "input")])[0][0][places].double().T
            torch.testing.assert_close(editor.state_dict()[f"{path}.past"], keys @ keys.T, atol=1e-5, rtol=1e-5)
            if forgets:
                editor._past = {}
            before = editor.deltas[path].value.double()
            editor.edit(second, EditContext(2))
            moved.append(float(((editor.deltas[path].value.double() - before) @ keys).norm()))
    assert moved[0] < 0.5 * moved[1]


def test_the_paper_literal_variant_writes_one_key(runtime: Runtime, tmp_path: Path) -> None:
    """And in the last layer it can fit the first token of a longer target at most: nothing mixes positions behind."""
    entry = entry_of("alphaedit:last_prompt")
    settings = ("clamp=8.0", "steps=40", "neutral=0", "stop=0.0", "share=0.5")
    editor = entry.make(EditorOptions(demo_model_dir(), settings=settings))
    assert isinstance(editor, AlphaEditor)
    fitted(editor, runtime, tmp_path)
    request = requests(tmp_path, 3)[2]
    encoded = runtime.encode(request.query, request.target)
    batch, path = runtime.batch([encoded]), f"{LAST}.mlp.down_proj"
    with editor.attach(runtime):
        (value,) = [find_value(runtime, LAST, [encoded], [], editor.tuning, Work(), last_prompt=True)]
        assert len(value.delta) == 1
        editor.edit(request, EditContext())
        past = editor.state_dict()[f"{path}.past"]
        key = runtime.read([encoded], [(path, "input")])[0][0][encoded.target.start - 1].double()
        torch.testing.assert_close(past, torch.outer(key, key), atol=1e-5, rtol=1e-5)
        assert bool(runtime.score(batch).right()[0, -len(encoded.target)])


def test_both_ways_to_solve_write_the_same(runtime: Runtime, tmp_path: Path) -> None:
    written = []
    for name in EDITORS[:2]:
        editor = made(name, steps=5)
        fitted(editor, runtime, tmp_path)
        with editor.attach(runtime):
            for number, one in enumerate(requests(tmp_path, 2), 1):
                editor.edit(one, EditContext(number))
        written.append(editor.state_dict()[f"{LAST}.mlp.down_proj"])
        grows = editor.footprint().growing
        assert (grows > 0) == (name == "alphaedit-low-rank")
    torch.testing.assert_close(*written, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("consistent", [False, True])
@pytest.mark.parametrize("contexts", [0, 2])
def test_rome_maps_keys_to_values_exactly(runtime, tmp_path, monkeypatch, consistent: bool, contexts: int) -> None:
    editor, values = made("rome", consistent=consistent, contexts=contexts), []
    fitted(editor, runtime, tmp_path)
    find = RomeEditor._value
    monkeypatch.setattr(RomeEditor, "_value", lambda self, *args: values.append(find(self, *args)) or values[-1])
    request = requests(tmp_path, 3)[2]
    with editor.attach(runtime):
        (path,) = editor.deltas
        editor.edit(request, EditContext())
        rows = editor._taken(editor.asked(request), [path], path, Work())
        Delta = editor.deltas[path].value.double()
    keys, outputs = (torch.stack([row[side] for row in rows]) for side in (0, 1))
    base = outputs - keys @ Delta.T
    wanted = base[0] + values[0].delta.double()
    reached = outputs.mean(dim=0) if consistent else outputs[0]
    torch.testing.assert_close(reached, wanted, atol=1e-4, rtol=1e-4)
    assert values[0].delta.norm() > 1e-2


@pytest.mark.parametrize("name", ["alphaedit", "memit"])
def test_a_fit_that_was_interrupted_ends_with_the_same_bytes(runtime, tmp_path, monkeypatch, name: str) -> None:
    monkeypatch.setattr("more_lab.editors.locate.pool.CHUNK", 1)
    whole, kept = made(name), {}
    fitted(whole, runtime, tmp_path)

    class Killed(Exception):
        pass

    def save(make) -> None:
        kept.update({key: value.clone() for key, value in make().items()})
        if int(kept["done"]) == 2:
            raise Killed

    again = made(name)
    with again.attach(runtime), pytest.raises(Killed):
        again.fit(FitData(pool(tmp_path), save=save))
    again = made(name)
    with again.attach(runtime):
        again.fit(FitData(pool(tmp_path), load=lambda: kept))
    expected, found = whole.fitted(), again.fitted()
    assert expected.keys() == found.keys()
    assert all(torch.equal(value, found[key]) for key, value in expected.items())


def test_second_moments_are_those_of_all_tokens(runtime: Runtime, tmp_path: Path) -> None:
    editor, (edit,) = made("memit"), pool(tmp_path)[:1]
    facts = fitted(editor, runtime, tmp_path, [edit])
    samples = [runtime.encode(Query(edit.images, edit.question), edit.target)]
    samples += [runtime.encode(Query.of(p)) for p in edit.locality]
    for path in editor._keys.paths:
        found = [runtime.read([one], [(path, "input")])[0][0].double() for one in samples]
        kinds = {
            kind: torch.cat([row for one, row in zip(samples, found, strict=True) if bool(one.images) == shown])
            for kind, shown in (("image", True), ("text", False))
        }
        assert facts["keys"] == {kind: len(keys) for kind, keys in kinds.items()}
        for kind, keys in (kinds | {"": torch.cat(found)}).items():
            moment = editor._keys.apart(path)[kind] if kind else editor._keys.together(path)
            torch.testing.assert_close(moment, keys.T @ keys / len(keys), atol=1e-6, rtol=1e-5)


def test_keys_of_texts_count_as_much_as_those_of_images(runtime: Runtime, tmp_path: Path) -> None:
    left = {}
    for apart in (True, False):
        editor = made("alphaedit", apart=apart, share=0.9)
        fitted(editor, runtime, tmp_path)
        for path in editor._keys.paths:
            V, moments = editor._protected[path], editor._keys.apart(path)
            free = {kind: float(outside(V, moment).trace()) for kind, moment in moments.items()}
            counted = {kind: 1 if apart else editor._keys.tokens[kind] for kind in moments}
            whole = sum(counted[kind] * float(moment.trace()) for kind, moment in moments.items())
            assert sum(counted[kind] * free[kind] for kind in moments) <= 0.1 * whole + 1e-9
            left[apart, path] = free["text"]
    assert all(left[True, path] < left[False, path] for path in editor._keys.paths)


@pytest.mark.parametrize("name", EDITORS[:3])
def test_a_batch_is_one_system_of_all_keys(runtime: Runtime, tmp_path: Path, name: str) -> None:
    asked, editor = requests(tmp_path, 2), Batched(made(name, contexts=0), size=2)
    with editor.attach(runtime):
        editor.fit(FitData(pool(tmp_path)))
    inner, systems = editor.inner, list[tuple[int, ...]]()
    change = type(inner)._change

    def spied(path, keys, residual):
        systems.append(keys.shape)
        return change(inner, path, keys, residual)

    inner._change = spied
    tokens = sum(len(runtime.encode(one.query, one.target).target) for one in asked)
    batch = runtime.batch([runtime.encode(one.query, one.target) for one in asked])
    before = runtime.score(batch)
    with editor.attach(runtime):
        first = editor.edit(asked[0], EditContext(1))
        assert (first.writes, systems) == (0, []), "it waits"
        assert torch.equal(runtime.score(batch).logits, before.logits)
        last = editor.edit(asked[1], EditContext(2, past_of(1)))
        assert (last.writes, {shape[1] for shape in systems}) == (1, {tokens})
        assert (runtime.score(batch).nll() < before.nll()).all()
        assert editor.catch_up() == 0.0, "nothing waits"


def test_a_batch_that_is_not_full_is_written_when_the_model_is_asked(runtime: Runtime, tmp_path: Path) -> None:
    (request, *_), alone = requests(tmp_path, 1), made("memit", contexts=0)
    editor = Batched(made("memit", contexts=0))
    fitted(alone, runtime, tmp_path)
    editor.load_fitted(alone.fitted())
    with alone.attach(runtime):
        alone.edit(request, EditContext(1))
    with editor.attach(runtime):
        editor.edit(request, EditContext(1))
        assert editor.catch_up() > 0
    assert all(torch.equal(value, alone.state_dict()[path]) for path, value in editor.state_dict().items())
    assert editor.notes() == {"number": 1, "written": 1}
    editor.reset()
    assert not editor.state_dict()


def test_what_is_drawn_from_the_pool_comes_back(runtime: Runtime, tmp_path: Path) -> None:
    editor = made("memit", neutral=3, contexts=2)
    fitted(editor, runtime, tmp_path)
    drawn, again = editor._material, Material.of(editor.fitted())
    assert again.contexts == drawn.contexts
    assert [bool(one.images) for one in drawn.neutral] == [False, False, True]
    one, other = (runtime.score(runtime.batch(found.neutral)).logits for found in (drawn, again))
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", EDITORS)
def test_a_value_that_is_not_finite_is_refused(runtime, tmp_path, monkeypatch, name: str) -> None:
    editor, (request, *_) = made(name), requests(tmp_path, 1)
    fitted(editor, runtime, tmp_path)

    def broken(optimiser: torch.optim.Optimizer) -> None:
        for group in optimiser.param_groups:
            for parameter in group["params"]:
                parameter.data.fill_(torch.nan)

    monkeypatch.setattr(torch.optim.Adam, "step", broken)
    with editor.attach(runtime):
        outcome = editor.edit(request, EditContext())
    assert (outcome.status, outcome.writes) == ("refused", 0)
    assert not editor.state_dict()


def test_an_editor_that_was_not_fitted_says_so(runtime: Runtime, tmp_path: Path) -> None:
    editor = made("rome")
    with editor.attach(runtime), pytest.raises(StateError, match="was not fitted"):
        editor.edit(EditRequest("1", Query((picture(tmp_path),), "why ?"), "7"), EditContext())


def test_occupied_directions_are_those_of_the_largest_outputs() -> None:
    U, _ = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    written = U[:, :3] @ torch.diag(torch.tensor([1.0, 5.0, 3.0]).double()) @ torch.eye(3, 6, dtype=torch.float64)
    found = occupied(written, room=0.5)
    assert found.shape == (8, 3), "three outputs of eight directions, and half of them may be avoided"
    few = occupied(written, room=0.75)
    assert torch.allclose(few @ few.T, U[:, 1:3] @ U[:, 1:3].T, atol=1e-12), "the two largest"
    assert occupied(torch.zeros(8, 6).double(), 0.5).shape == (8, 0)


def test_an_edit_of_unusual_noise_is_written_beside_the_outputs_of_the_others(runtime: Runtime, tmp_path: Path) -> None:
    editor = made("deltaedit", warmup=1, deviation=0.0, room=0.5)
    fitted(editor, runtime, tmp_path)
    asked = requests(tmp_path, 4)
    with editor.attach(runtime):
        path = editor.modules(runtime)[-1]
        for number, one in enumerate(asked[:3], 1):  # without noise, with the first noise, with the first variance
            editor.edit(one, EditContext(number))
        calm = editor.deltas[path].value.double().clone()
        assert editor.state_dict()[NOISE][2] == 3
        editor.edit(asked[3], EditContext(4))
        change = editor.deltas[path].value.double() - calm
        V = occupied(calm, 0.5)
        assert change.norm() > 0
        # The last layer gets what the value still lacks; the layers before it add outputs of their own.
        share = float((V.T @ change).norm() / change.norm())
        free = made("deltaedit", warmup=99)
    free.load_fitted(editor.fitted())
    with free.attach(runtime):
        for number, one in enumerate(asked[:3], 1):
            free.edit(one, EditContext(number))
        before = free.deltas[path].value.double().clone()
        assert torch.equal(before, calm), "within the warm-up it is AlphaEdit"
        free.edit(asked[3], EditContext(4))
        unconstrained = free.deltas[path].value.double() - before
    assert share < 0.5 * float((V.T @ unconstrained).norm() / unconstrained.norm())


def test_the_usual_range_is_a_running_mean_and_variance() -> None:
    editor = DeltaEditor(DeltaEditTuning(warmup=3, deviation=2.0))
    mean, variance = 0.0, 0.0
    for norm in (2.0, 2.1, 1.9, 2.0):
        assert not editor._is_unusual(norm)
        mean = norm if mean == 0 else 0.9 * mean + 0.1 * norm
        variance = 0.9 * variance + 0.1 * (norm - mean) ** 2
    assert editor._noise.tolist() == pytest.approx([mean, variance, 4])
    assert editor._is_unusual(mean + 2.01 * variance**0.5)
    assert editor._noise.tolist() == pytest.approx([mean, variance, 5]), "what is unusual does not widen the range"
    assert not editor._is_unusual(mean + 1.9 * variance**0.5)


@pytest.mark.parametrize("warmup", [3, 20])
def test_the_first_edit_after_the_warm_up_can_be_unusual(warmup: int) -> None:
    editor = DeltaEditor(DeltaEditTuning(warmup=warmup, deviation=2.0))
    noises = [0.0, *(2.0 + 0.1 * (-1) ** number for number in range(1, warmup))]  # the first edit has none
    assert not any(editor._is_unusual(norm) for norm in noises)
    assert editor._is_unusual(9.0)
