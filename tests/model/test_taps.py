"""Taps and routes: what an editor may do to some rows of a pass, in scores and in generated answers alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from more_cli.model.batches import Encoded, Query
from more_cli.model.families import family_of
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from more_cli.model.taps import Rows, Tap
from support.editing import picture, requests
from support.tiny_families import make_family

LAYER = "model.language_model.layers.2"


@dataclass
class Routing:
    """Routes prompts with a picture, and asks every question with a word more."""

    word: str = ""
    seen: list[Encoded] = field(default_factory=list)

    def rewrite(self, query: Query) -> Query:
        return Query(query.images, f"{self.word} {query.question}".strip())

    def routes(self, prompts: Sequence[Encoded]) -> Sequence[float | None]:
        self.seen += prompts
        return [10.0 if prompt.images else None for prompt in prompts]


def shifted(hidden: Tensor, rows: Rows) -> Tensor:
    changed = hidden.clone()
    for row in rows.routed:
        changed[row] += rows.routes[row]
    return changed


@pytest.fixture
def pair(runtime: Runtime, tmp_path: Path) -> list[Encoded]:
    """A question with a picture and a shorter one without."""
    shown = requests(tmp_path, 1)[0]
    return [runtime.encode(shown.query, "7"), runtime.encode(Query((), "is it a dog ?"), "red")]


def test_only_rows_with_a_route_change(runtime: Runtime, pair: list[Encoded]) -> None:
    batch = runtime.batch(pair)
    before = runtime.score(batch).logits
    with runtime.attached([Tap(LAYER, shifted)], Routing()):
        after = runtime.score(batch).logits
        with runtime.base():
            assert torch.equal(runtime.score(batch).logits, before)
    assert torch.equal(after[1], before[1])
    assert not torch.allclose(after[0], before[0])
    assert torch.equal(runtime.score(batch).logits, before)


def test_routes_are_asked_for_prompts_alone(runtime: Runtime, tmp_path: Path) -> None:
    query, routing = requests(tmp_path, 1)[0].query, Routing()
    with runtime.attached([Tap(LAYER, shifted)], routing):
        for target in ("7", "a dog"):
            runtime.score(runtime.batch([runtime.encode(query, target)]))
        runtime.generate([query], 2)
    prompt = runtime.encode(query)
    assert len(routing.seen) == 3
    assert all(torch.equal(seen.input_ids, prompt.input_ids) and not len(seen.target) for seen in routing.seen)


def test_rows_say_where_the_prompt_ends(runtime: Runtime, pair: list[Encoded]) -> None:
    seen: list[Rows] = []

    def keep(hidden: Tensor, rows: Rows) -> Tensor:
        seen.append(rows)
        return hidden

    batch = runtime.batch(pair)
    with runtime.attached([Tap(LAYER, keep)]):
        runtime.score(batch)
        runtime.generate([Query((), "why ?")], 3)
    assert seen[0].prompt.sum(1).tolist() == [sequence.target.start for sequence in pair]
    assert (seen[0].last == (seen[0].prompt & batch.answer)).all(), (
        "the last prompt token predicts the first answer token"
    )
    assert seen[1].last[0, -1]
    later = seen[2:]
    assert len(later) == 2, "one call for each further token"
    assert not any(rows.prompt.any() for rows in later)


def test_a_generated_answer_is_the_forced_one(runtime: Runtime, tmp_path: Path) -> None:
    """The tap acts on every step of a generation as on the positions of a forced answer."""
    query = requests(tmp_path, 1)[0].query
    with runtime.attached([Tap(LAYER, shifted)], Routing()):
        (answer,) = runtime.generate([query], 4)
        forced = runtime.score(runtime.batch([runtime.encode(query).followed_by(answer)]))
    assert forced.predicted()[0].tolist() == answer


def test_a_tap_on_the_input_is_one_on_what_comes_before(runtime: Runtime, pair: list[Encoded]) -> None:
    batch, answers = runtime.batch(pair), []
    for tap in (Tap(LAYER, shifted, "input"), Tap("model.language_model.layers.1", shifted)):
        with runtime.attached([tap], Routing()):
            answers.append(runtime.score(batch).logits)
    assert torch.equal(*answers)


def test_a_tap_on_the_head_replaces_logits(runtime: Runtime, pair: list[Encoded]) -> None:
    def fives(logits: Tensor, rows: Rows) -> Tensor:
        return torch.zeros_like(logits).index_fill_(-1, torch.tensor([5]), 1.0)

    with runtime.attached([Tap("lm_head", fives)]):
        assert (runtime.score(runtime.batch(pair)).predicted() == 5).all()
        assert runtime.generate([Query((), "why ?")], 3) == [[5, 5, 5]]


def test_questions_are_rewritten_for_the_editor_and_not_for_the_base(runtime: Runtime, tmp_path: Path) -> None:
    query = Query((picture(tmp_path),), "what is it ?")
    plain, longer = runtime.encode(query, "7"), runtime.encode(Query(query.images, "red what is it ?"), "7")
    with runtime.attached([], Routing("red")):
        assert torch.equal(runtime.encode(query, "7").input_ids, longer.input_ids)
        with runtime.base():
            assert torch.equal(runtime.encode(query, "7").input_ids, plain.input_ids)
    assert torch.equal(runtime.encode(query, "7").input_ids, plain.input_ids)


def test_hidden_states_are_read_without_padding(runtime: Runtime, pair: list[Encoded]) -> None:
    places = [(LAYER, "output"), ("model.language_model.layers.3", "input"), (f"{LAYER}.mlp.down_proj", "input")]
    calls: list[None] = []
    handle = runtime.model.lm_head.register_forward_hook(lambda *_: calls.append(None))
    found = runtime.read(pair, places)
    handle.remove()
    assert not calls, "the pass ends behind the last place"
    for sample, (out, into, key) in zip(pair, found, strict=True):
        assert len(out) == len(into) == len(key) == len(sample.input_ids)
        assert torch.equal(out, into)
        (alone,) = runtime.read([sample], places[:1])
        assert torch.allclose(alone[0], out, atol=1e-5)


def test_a_module_that_gets_all_rows_as_one_is_read_and_changed_row_by_row() -> None:
    """OPT flattens rows and tokens before its feed-forward part."""
    model, processor = make_family("blip-2")
    runtime = Runtime(model.eval(), Prompter(processor, family_of(model.config.model_type)))
    prompts = [runtime.encode(Query((), "why ?")), runtime.encode(Query((), "is it a dog ?"))]
    path = next(name for name, _ in model.named_modules() if name.endswith("layers.1.fc2"))
    for prompt, (inputs, outputs) in zip(
        prompts, runtime.read(prompts, [(path, "input"), (path, "output")]), strict=True
    ):
        assert len(inputs) == len(outputs) == len(prompt.input_ids)
        linear = model.get_submodule(path)
        torch.testing.assert_close(linear(inputs), outputs, atol=1e-5, rtol=1e-5)
    seen: list[tuple[int, ...]] = []

    def keep(hidden: Tensor, rows: Rows) -> Tensor:
        seen.append((*hidden.shape[:2], *rows.prompt.shape))
        return hidden

    before = runtime.score(runtime.batch([prompt.followed_by([5]) for prompt in prompts])).logits
    with runtime.attached([Tap(path, keep)]):
        batch = runtime.batch([prompt.followed_by([5]) for prompt in prompts])
        assert torch.equal(runtime.score(batch).logits, before)
        runtime.generate([Query((), "why ?")], 2)
    longest = max(len(prompt.input_ids) for prompt in prompts)
    assert seen[0] == (2, longest + 1) * 2
    assert all(shape[:2] == shape[2:] for shape in seen)
