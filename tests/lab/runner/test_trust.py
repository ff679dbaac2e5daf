"""Why numbers of a suite can be trusted: an oracle scores 1, nothing is asked twice, the same seed repeats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from more_cli.demo.files import demo_model_dir
from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.registry import EDITORS, EditorEntry
from more_cli.evaluation.probes import probes_of
from more_cli.inputs.edits import Edit, read_edits
from more_cli.model.batches import Batch, Encoded
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored
from more_cli.suites.embedded import suite_folder
from more_lab.editors.none import NoEditor
from support.helpers import Result, World, line, run

SURE = 1e4
"""A logit that leaves no doubt."""


class Oracle(NoEditor):
    """Reads answers from a table: after an edit, every probe of it gets the target, and nothing else does."""

    is_base = False

    def __init__(self, edits: Sequence[Edit]) -> None:
        super().__init__()
        self.edits = {edit.id: edit for edit in edits}
        self.answers: dict[tuple[tuple[str, ...], tuple[int, ...]], list[int]] = {}

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        made: list[tuple[Batch, Sequence[Encoded]]] = []
        batch, score, answers = runtime.batch, runtime.score, runtime._answers

        def remembered(sequences: Sequence[Encoded]) -> Batch:
            made.append((batch(sequences), sequences))
            return made[-1][0]

        def scored(asked: Batch, **options: Any) -> Scored:
            result = score(asked, **options)
            sequences = next(of for one, of in made if one is asked)
            for logits, mask, sequence in zip(result.logits, result.mask, sequences, strict=True):
                self.lookup(logits, mask, sequence)
            return result

        def answered(prompts: Sequence[Encoded], longest: int) -> list[list[int]]:
            said = answers(prompts, longest)
            return [self.answers.get(key(prompt), ids) for prompt, ids in zip(prompts, said, strict=True)]

        runtime.batch, runtime.score, runtime._answers = remembered, scored, answered  # type: ignore[method-assign]
        try:
            with super().attach(runtime):
                yield
        finally:
            del runtime.batch, runtime.score, runtime._answers

    def lookup(self, logits: Tensor, mask: Tensor, sequence: Encoded) -> None:
        places = mask.nonzero()[:, 0].tolist()
        for place, token in zip(places, self.answers.get(key(sequence), []), strict=False):
            logits[place, token] = SURE

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        for probe in probes_of(self.edits[request.id]):
            if probe.target is not None:
                encoded = self.runtime.encode(probe.query, probe.target)
                self.answers[key(encoded)] = encoded.input_ids[encoded.target.start : encoded.target.stop].tolist()
        return super().edit(request, context)


def key(sequence: Encoded) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return sequence.images, tuple(sequence.input_ids[: sequence.target.start].tolist())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four edits with a rephrase, another image and two locality probes each."""
    world = World(tmp_path_factory.mktemp("trust") / "world")
    asked = [{"question": "is it a dog ?"}, {"question": "what is in the image ?", "image": "img/black.png"}]
    others = ("orange", "purple", "white", "yellow")
    world.write(
        [
            line(n, rephrases=["which colour ?"], image_rephrases=[f"img/{others[n]}.png"], locality=asked)
            for n in range(3)
        ]
    )
    return world


def suite(world: World, editor: str, *options: object, cache: str = "cache") -> Result:
    where = "--cache", world.root / cache, "--dtype", "float32", "--json"
    return run("run", world.model, "--suite", world.root / "edits.jsonl", "--editor", editor, *where, *options)


def test_an_oracle_has_every_edit_and_moves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    edits = read_edits(world.root / "edits.jsonl").edits
    monkeypatch.setitem(EDITORS, "oracle", EditorEntry("oracle", lambda options: Oracle(edits)))
    result = suite(world, "oracle")
    assert result.code == 0, result.err
    for readout in ("final@3", "online@3", "online@1"):
        values = {name: one["value"] for name, one in result.json["protocols"][readout].items()}
        for kind in ("rel", "gen_text", "gen_image"):
            for metric in ("tf_exact", "tf_token_acc", "gen_exact", "gen_stops"):
                assert values[f"{kind}.{metric}"] == 1.0, (readout, kind, metric)
            assert values[f"{kind}.target_nll"] == 0.0
        for kind in ("loc_text", "loc_image"):
            assert values[f"{kind}.loc_gen_same"] == values[f"{kind}.loc_top1_answer"] == 1.0
    assert (result.json["first_failing"], result.json["forgetting"]["value"]) == (None, 0.0)
    none = suite(world, "none").json
    assert none["metrics"]["rel.gen_exact"]["value"] < 1.0, "the model itself does not know them"


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in result.items() if name != "wall_seconds"}
    return kept | {"stream": [edit | {"seconds": 0.0} for edit in kept["stream"]]}


@pytest.mark.parametrize("editor", ["more", "more:authors", "ft-m", "lora"])
def test_the_same_seed_gives_the_same_json_but_for_times(world: World, editor: str) -> None:
    first, second = (suite(world, editor, cache=f"{editor.replace(':', '-')}-{n}").json for n in (1, 2))
    assert (first["resumed"], second["resumed"]) == (0, 0), "both were measured"
    assert without_times(first) == without_times(second)


def test_a_second_run_loads_no_model(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = suite(world, "more").json
    monkeypatch.setattr("more_cli.runner.run.load_runtime", None)
    second = suite(world, "more").json
    assert second["resumed"] == 3
    assert second["matrix"] == first["matrix"]


@pytest.mark.slow
def test_a_real_state_changes_a_capability_by_what_it_was_taught(tmp_path: Path) -> None:
    """The embedded model is taught the opposite of what it says right: `mme` and `--probes` agree on the loss."""
    model, folder = tmp_path / "llava", tmp_path / "mme" / "color"
    shutil.copytree(demo_model_dir(), model)
    folder.mkdir(parents=True)
    for path in sorted((suite_folder("mme-mini") / "color").iterdir())[:12]:  # six images with their questions
        shutil.copy(path, folder)
    asked = []
    for path in sorted(folder.glob("*.txt")):
        for row in path.read_text().splitlines():
            question, answer = row.split("\t")
            asked.append({"image": f"{path.stem}.png", "question": question, "answer": answer})
    write(tmp_path / "probes.jsonl", asked)
    score = "--probes", tmp_path / "probes.jsonl", "--image-root", folder, "--json"
    run("init", model)
    before = [one["verdict"] == "holds" for one in run("eval", model, *score).json["per_edit"]]
    right = [place for place, holds in enumerate(before) if holds]
    assert len(right) > len(asked) / 2, "the model was trained on such questions"
    taught = right[:3]
    opposite = {"Yes": "no", "No": "yes"}
    write(
        tmp_path / "edits.jsonl",
        [
            {"image": one["image"], "question": one["question"], "target": opposite[one["answer"]]}
            for one in (asked[place] for place in taught)
        ],
    )
    assert run("edit", model, tmp_path / "edits.jsonl", "--image-root", folder).code == 0
    after = [one["verdict"] == "holds" for one in run("eval", model, *score).json["per_edit"]]
    assert not any(after[place] for place in taught)
    mme = "--suite", "mme", "--data-root", tmp_path / "mme"
    result = run("eval", model, *mme, "--json", "--gate", "mme.accuracy_change>=-0.02")
    assert result.code == 6
    assert result.json["base"]["accuracy"] == pytest.approx(sum(before) / len(asked))
    assert result.json["edited"]["accuracy"] == pytest.approx(sum(after) / len(asked))
    assert result.json["change"]["all"]["value"] == pytest.approx((sum(after) - sum(before)) / len(asked))
    assert result.json["change"]["all"]["value"] < 0.0


def write(path: Path, lines: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
