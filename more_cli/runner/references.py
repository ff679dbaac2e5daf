"""Cached answers that locality compares with: of the untouched base, or of the model just before an edit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from more_cli.errors import DataError, StateError
from more_cli.evaluation.names import Yardstick
from more_cli.evaluation.probes import Probe, Reference, ask, ask_base, batches
from more_cli.files import sha256_json, write_whole
from more_cli.inputs.edits import Edit
from more_cli.model.runtime import Runtime
from more_cli.text import shorten


class BaseAnswers:
    """The untouched base's answers, asked once and cached for every later run on the same base.

    One file per answer; a missing or damaged one is asked for again.
    """

    def __init__(self, runtime: Runtime, folder: Path, yardstick: Yardstick) -> None:
        self._runtime, self._yardstick = runtime, yardstick
        self._cache = _Cache(folder)
        self.asked = 0
        """Number of probes that the base was asked so far."""

    def __call__(self, probes: Sequence[Probe]) -> list[Reference]:
        """Return the base's answers, in order."""
        known = [self._cache.read(self._facts(probe)) for probe in probes]
        missing = [probe for probe, reference in zip(probes, known, strict=True) if reference is None]
        fresh = iter(self._ask(missing))
        return [reference or next(fresh) for reference in known]

    def prepare(self, probes: Sequence[Probe], on_progress: Callable[[int, int], None]) -> None:
        """Ask the locality probes that are not cached yet, and those of the same batch again.

        The last digits of an answer depend on its batch. So every list of probes has answers of its own, and always the
        same batches: whatever was asked before, and by which process, a list has the same answers.
        """
        locality = [probe for probe in probes if probe.is_locality]
        self._cache = self._cache.within([self._facts(probe) for probe in locality])
        missing = [group for group in batches(locality) if not all(map(self._knows, group))]
        done, total = 0, sum(map(len, missing))
        for group in missing:
            done += len(self._ask(group))
            on_progress(done, total)

    def _knows(self, probe: Probe) -> bool:
        return self._cache.has(self._facts(probe))

    def _ask(self, probes: Sequence[Probe]) -> list[Reference]:
        if not probes:
            return []
        answers = ask_base(self._runtime, probes, self._yardstick)
        self.asked += len(probes)
        for probe, reference in zip(probes, answers, strict=True):
            self._cache.write(self._facts(probe), reference)
        return answers

    def _facts(self, probe: Probe) -> list[object]:
        facts: list[object] = [[image.sha256 for image in probe.query.images], probe.query.question]
        facts += [{"gold": probe.gold}] if self._yardstick.prefix == "gold" else []
        return facts + (["everywhere"] if self._yardstick.everywhere else [])


class EarlierAnswers:
    """The model's answers to each edit's locality probes just before that edit, kept until the run is finished."""

    def __init__(self, runtime: Runtime, folder: Path, yardstick: Yardstick) -> None:
        self._runtime, self._yardstick = runtime, yardstick
        self._cache, self._folder = _Cache(folder), folder

    def ask(self, probes: Sequence[Probe]) -> None:
        """Ask the model as it is now; the editor must be attached."""
        for group in batches([probe for probe in probes if probe.is_locality]):
            queries = [probe.query for probe in group]
            answers = ask(self._runtime, queries, group, self._yardstick)
            for probe, reference in zip(group, answers, strict=True):
                self._cache.write(_facts_within(probe), reference)

    def __call__(self, probes: Sequence[Probe]) -> list[Reference]:
        """Return the answers, in order.

        Raises:
            StateError: an answer is missing.
        """
        return [self._read(probe) for probe in probes]

    def _read(self, probe: Probe) -> Reference:
        reference = self._cache.read(_facts_within(probe))
        if reference is None:
            raise StateError(
                f"`{self._folder}` lacks an answer from before edit `{probe.edit}`", "run it again with --again"
            )
        return reference

    def forget(self) -> None:
        """Remove all answers."""
        shutil.rmtree(self._folder, ignore_errors=True)


class _Cache:
    """References in a folder, one file each, named by a hash of the facts that decide the answer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def within(self, facts: Sequence[object]) -> _Cache:
        """Return the cache of a list of facts, in a folder of its own."""
        return _Cache(self._path(facts).with_suffix(""))

    def has(self, facts: Sequence[object]) -> bool:
        return self._path(facts).exists()

    def read(self, facts: Sequence[object]) -> Reference | None:
        try:
            tensors = load_file(self._path(facts))
            return Reference(tuple(tensors["tokens"].tolist()), tensors["logits"], tensors.get("top"))
        except (OSError, SafetensorError, KeyError):
            return None

    def write(self, facts: Sequence[object], reference: Reference) -> None:
        tensors = {"tokens": torch.tensor(reference.tokens), "logits": reference.logits.contiguous()}
        tensors |= {} if reference.top is None else {"top": reference.top.contiguous()}
        write_whole(self._path(facts), save(tensors))

    def _path(self, facts: Sequence[object]) -> Path:
        return self._folder / f"{sha256_json(facts)[:32]}.safetensors"


def _facts_within(probe: Probe) -> list[object]:
    """Return the facts that name a probe within a run: two edits may ask the same question at different times."""
    return [probe.edit, [image.sha256 for image in probe.query.images], probe.query.question]


def require_answers(edits: Sequence[Edit], yardstick: Yardstick) -> None:
    """Check that locality can be measured on gold answers, if it is.

    Raises:
        DataError: a locality question has no answer.
    """
    for edit in edits if yardstick.prefix == "gold" else ():
        for asked in edit.locality:
            if asked.answer is None:
                raise DataError(
                    f"edit `{shorten(edit.id)}`: locality question `{shorten(asked.question)}` has no answer",
                    "this preset measures locality on gold answers: add one, or choose other --metrics",
                )
