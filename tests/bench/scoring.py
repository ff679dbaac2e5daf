"""Scoring of 100 edits with five probes each, compared with one question at a time; see speed.py."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.demo.files import demo_model_dir
from more_cli.editors.registry import EditorOptions, entry_of
from more_cli.evaluation.names import Yardstick
from more_cli.evaluation.probes import Probe, ProbeScore, probes_of, run_probes
from more_cli.evaluation.streams import Stream
from more_cli.inputs.edits import read_edits
from more_cli.model.batches import Query
from more_cli.model.loading import load_runtime
from more_cli.model.machine import Machine
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from more_cli.runner.references import BaseAnswers
from more_cli.suites.embedded import suite_folder


def measure(folder: Path, rounds: int, edits: int = 100) -> dict[str, Any]:
    """Return the seconds of every round by way, and the largest difference between the scores of the ways."""
    torch.set_num_threads(1)
    loaded = load_runtime(open_checkpoint(demo_model_dir()), Machine(dtype="float32"))
    chosen = read_edits(suite_folder("e-vqa-mini") / "eval.json").edits[:edits]
    probes = [probe for edit in chosen for probe in probes_of(edit)]
    editor = entry_of("more").make(EditorOptions(demo_model_dir()))
    with editor.attach(loaded):
        Stream(editor, chosen).run()

    def known() -> list[ProbeScore]:
        return run_probes(loaded, editor, probes, references=BaseAnswers(loaded, folder / "base", Yardstick()))

    ways: dict[str, Callable[[], list[ProbeScore]]] = {
        "one by one": lambda: one_by_one(loaded, editor, probes),
        "together": lambda: run_probes(loaded, editor, probes),
        "together, base known": known,
    }
    with editor.attach(loaded):
        known()
    found: dict[str, Any] = {"edits": edits, "probes": len(probes), "seconds": {way: [] for way in ways}}
    scores = {}
    for _ in range(rounds):
        for way, work in ways.items():
            loaded.prompter._recent.clear()
            with editor.attach(loaded):  # with an empty cache of vision features
                started = time.perf_counter()
                scores[way] = work()
                found["seconds"][way].append(round(time.perf_counter() - started, 3))
    first = scores.pop("one by one")
    found["apart"] = {way: apart(first, other) for way, other in scores.items()}
    found["held"] = sum(score.holds for score in first if score.probe.kind == "rel")
    return found


def one_by_one(loaded: Runtime, editor: Any, probes: Sequence[Probe]) -> list[ProbeScore]:
    """Score question by question, with a vision pass and a generated answer each time."""
    with in_full(loaded):
        return [score for probe in probes for score in run_probes(loaded, editor, [probe])]


@contextmanager
def in_full(loaded: Runtime) -> Any:
    """Switch off everything that is kept from one pass to the next."""
    vision, loaded._vision = loaded._vision, None
    prompted = Prompter._prompted

    def anew(prompter: Prompter, query: Query) -> Any:
        prompter._recent.clear()
        return prompted(prompter, query)

    with mock.patch.object(Runtime, "picks_most_likely", False), mock.patch.object(Prompter, "_prompted", anew):
        yield
    loaded._vision = vision


def apart(first: Sequence[ProbeScore], second: Sequence[ProbeScore]) -> float:
    """Return the largest difference of a score, in nats or of at most 1."""
    return max(
        abs(one.values[name] - other.values[name])
        for one, other in zip(first, second, strict=True)
        for name in one.values
        if math.isfinite(one.values[name])
    )
