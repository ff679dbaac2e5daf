"""`more eval --suite`: an editor goes through a suite of edits from the untouched base; no state is touched."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from more_cli.checkpoint.reader import Checkpoint, fingerprint, open_checkpoint
from more_cli.editors.base import Editor, EditOutcome
from more_cli.editors.more.memory import Memory
from more_cli.errors import DataError, UsageError
from more_cli.evaluation.names import METRICS, Yardstick
from more_cli.evaluation.per_edit import probes_hash
from more_cli.evaluation.probes import Probe, ProbeScore, References, probes_of, run_probes
from more_cli.evaluation.streams import request_of
from more_cli.experiments.calibrate import EDITS, Calibrations, try_settings
from more_cli.experiments.editors import Entry, Wish, entry_of
from more_cli.experiments.held_anchors import HeldAnchors, choose_anchors
from more_cli.experiments.presets import Preset
from more_cli.experiments.protocols import SINGLE, Protocol, Schedule
from more_cli.experiments.references import BaseAnswers, EarlierAnswers
from more_cli.experiments.report import SuiteReport, report
from more_cli.experiments.run_journal import RunJournal
from more_cli.files import canonical_json, sha256_bytes, shorten
from more_cli.inputs.edits import Edit
from more_cli.model.batches import Query
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime, load_prompter, load_runtime
from more_cli.ops.session import Every, versions
from more_cli.progress import Progress, no_progress
from more_cli.suites.load import EditSuite

SAVE_EDITS, SAVE_SECONDS = 10, 30.0
"""How often a run keeps its editor, to go on from."""


@dataclass(frozen=True)
class RunOptions:
    """How an editor goes through a suite."""

    editor: str = "more"
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    limit: int | None = 100
    """First edits of the suite; None for all."""
    protocols: tuple[Protocol, ...] = ("final", "online")
    checkpoints: tuple[int, ...] = (1, 10, 100)
    lags: tuple[int, ...] = (10,)
    cache: Path | None = None
    """Folder for what the base says and for the journals of runs; absent, `default_cache`."""
    again: bool = False
    """Measure anew what an earlier run has measured."""
    calibrate: int = 0
    """Settings of the editor that are tried first, on the suite's calibration pool; 0 for none."""
    preset: Preset | None = None
    """Whose metrics are read off; absent, ours."""

    anchors: Path | None = None
    """Questions whose answers must not move; absent, those that the editor's recipe names."""

    @property
    def folder(self) -> Path:
        """Where everything is kept that another run can use."""
        return self.cache or default_cache()

    @property
    def yardstick(self) -> Yardstick:
        """How locality is measured."""
        return self.preset.yardstick if self.preset else Yardstick()


def default_cache() -> Path:
    """Return where caches lie by the XDG rule."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path.home() / ".cache") / "more"


def run_suite(
    suite: EditSuite, model: Path, options: RunOptions, machine: Machine, progress: Progress = no_progress
) -> SuiteReport:
    """Run an editor through a suite, or finish a run that was interrupted.

    Raises:
        UsageError: unknown editor or setting, or anchors that it makes no use of.
        StreamErrors: an image of the suite is missing or cannot be read, or an anchor asks what a probe does.
        DataError: locality is to be measured on an answer that a question does not have.
        StateError: not a checkpoint that can be edited.
    """
    started = time.monotonic()
    pool = suite.pools["evaluation"]
    edits = list(pool[: options.limit])
    _check_answers(edits, options.yardstick)
    schedule = schedule_of(suite, options)
    entry, wish = entry_of(options.editor), Wish(model, options.recipe, options.settings)
    editor = entry.make(wish)
    checkpoint = open_checkpoint(model)
    reproduce = _reproduce(checkpoint, editor, options, suite, edits, machine)
    cache = options.folder
    anchors = HeldAnchors(choose_anchors(editor, options.anchors), cache / "anchors", _base_key(reproduce))
    anchors.check(edits)
    reproduce["anchors"] = anchors.digest
    if options.calibrate:
        calibration = _calibrated(suite, entry, wish, options, checkpoint, machine, reproduce, anchors, progress)
        editor = entry.make(wish.with_settings(*calibration["chosen"]))
        reproduce |= {"constants": editor.constants(), "calibration": calibration}
    yardstick, folder = options.yardstick, cache / "runs" / _key(reproduce, schedule, options.yardstick)
    run = _Run(editor, anchors, edits, schedule, yardstick, RunJournal(folder), progress)
    with run.journal.opened():
        if options.again:
            run.journal.forget()
        known = len(run.journal.lines)
        if not run.finished:
            runtime = load_runtime(checkpoint, machine, system=str(editor.constants().get("system", "")))
            said = cache / "base" / _base_key(reproduce)
            known = run.go(
                runtime,
                _Said(
                    BaseAnswers(runtime, said, Yardstick()),
                    BaseAnswers(runtime, said, yardstick),
                    EarlierAnswers(runtime, editor, folder / "before", yardstick),
                ),
            )
    lines = run.journal.lines[: run.steps]
    found = report(suite, model, options.editor, edits, schedule, lines, reproduce, options.preset)
    found.base_asked, found.resumed, found.seconds = run.asked, known, time.monotonic() - started
    return found


def schedule_of(suite: EditSuite, options: RunOptions) -> Schedule:
    """Return what is scored when, known before anything runs."""
    available = len(suite.pools["evaluation"])
    return Schedule(min(available, options.limit or available), options.protocols, options.checkpoints, options.lags)


def _calibrated(
    suite: EditSuite,
    entry: Entry,
    wish: Wish,
    options: RunOptions,
    checkpoint: Checkpoint,
    machine: Machine,
    reproduce: Mapping[str, Any],
    anchors: HeldAnchors,
    progress: Progress,
) -> dict[str, Any]:
    """Return what the calibration found, from an earlier run where it was the same."""
    if "calibration" not in suite.pools:
        raise UsageError(f"suite `{suite.name}` has no calibration pool here", "leave --calibrate out")
    pool = suite.pools["calibration"]
    edits = list(pool[:EDITS])
    anchors.check(edits)
    cache, facts = (
        options.folder,
        [reproduce[name] for name in ("editor", "constants", "anchors", "base", "template", "versions")],
    )
    kept = Calibrations(cache / "calibrations", *facts, list(wish.settings), options.calibrate, pool.sha256)
    found = None if options.again else kept.read()
    if found is None:
        runtime = load_runtime(checkpoint, machine, system=str(reproduce["constants"].get("system", "")))
        base = BaseAnswers(runtime, cache / "base" / _base_key(reproduce), Yardstick())
        found = try_settings(entry, wish, options.calibrate, edits, runtime, base, anchors, progress)
        kept.write(found)
    return found


@dataclass(frozen=True)
class _Said:
    """What is said by others than the edited model."""

    own: BaseAnswers
    """By the base, to the edits' questions."""
    base: BaseAnswers
    """By the base, to locality questions."""
    earlier: EarlierAnswers
    """By the model before each edit, to its locality questions."""


class _Run:
    """One run at work."""

    def __init__(
        self,
        editor: Editor,
        anchors: HeldAnchors,
        edits: Sequence[Edit],
        schedule: Schedule,
        yardstick: Yardstick,
        journal: RunJournal,
        progress: Progress,
    ) -> None:
        self.editor, self.anchors, self.edits, self.schedule = editor, anchors, edits, schedule
        self.yardstick, self.journal, self.progress = yardstick, journal, progress
        self.asked = 0
        self._save = Every(SAVE_EDITS, SAVE_SECONDS)

    @property
    def steps(self) -> int:
        """Edits of the stream, and again as many where each is scored alone too."""
        return len(self.edits) * (1 + ("single" in self.schedule.protocols))

    @property
    def finished(self) -> bool:
        """Whether the journal has everything."""
        return len(self.journal.lines) >= self.steps

    @property
    def asks_earlier(self) -> bool:
        """Whether a stream's locality is held against what the model said before each edit."""
        return self.yardstick.baseline == "prev" and not self.editor.is_base

    def go(self, runtime: Runtime, said: _Said) -> int:
        """Do what is missing and return how many steps were not."""
        snapshot = self.journal.resume()
        if snapshot:
            snapshot.give(self.editor)
        known = len(self.journal.lines)
        with self.anchors.attached(self.editor, runtime, fresh=snapshot is None):
            every = [] if self.asks_earlier else [probe for edit in self.edits for probe in probes_of(edit)]
            for answers, probes in ((said.own, list(map(_unedited, self.edits))), (said.base, every)):
                answers.prepare(probes, lambda done, total: self.progress(done, total, "asking the base"))
            self._stream(runtime, said)
        if not self.finished:
            self._single(runtime, said.base)
        said.earlier.forget()
        self.asked = said.own.asked + said.base.asked
        return known

    def _stream(self, runtime: Runtime, said: _Said) -> None:
        memory = self._memory()
        for line in self.journal.lines[: len(self.edits)]:
            _remember(memory, line["t"], self.edits[line["t"] - 1], line["outcome"])
        for t in range(len(self.journal.lines) + 1, len(self.edits) + 1):
            edit = self.edits[t - 1]
            self.progress(t - 1, self.steps, f"edit {edit.id}")
            put_off = 0.0
            if self.asks_earlier:
                put_off = self.editor.catch_up()
                said.earlier.ask(list(probes_of(edit)))
            line = {"t": t, "base": _answer(runtime, said.own, edit), **self._made(edit, memory, t)}
            due = self.schedule.due(t)
            line["catch_up"] = put_off + (self.editor.catch_up() if due else 0.0)
            line["scores"] = self._scores(runtime, said.earlier if self.asks_earlier else said.base, due)
            _remember(memory, t, edit, line["outcome"])
            self._keep(line)

    def _single(self, runtime: Runtime, base: BaseAnswers) -> None:
        for step in range(max(len(self.journal.lines), len(self.edits)), self.steps):
            i = step - len(self.edits) + 1
            edit = self.edits[i - 1]
            self.progress(step, self.steps, f"edit {edit.id} alone")
            self.editor.reset()
            with self.anchors.attached(self.editor, runtime, fresh=True):
                line = {"t": SINGLE, **self._made(edit, self._memory(), 1)}
                line["catch_up"] = self.editor.catch_up()
                line["scores"] = self._scores(runtime, base, [i])
                self._keep(line)

    def _memory(self) -> Memory:
        return Memory(lambda number: request_of(self.edits[number - 1]))

    def _made(self, edit: Edit, memory: Memory, number: int) -> dict[str, Any]:
        started = time.perf_counter()
        try:
            outcome = self.editor.edit(request_of(edit), memory.context(number, edit.subject, edit.content))
        except DataError as error:  # what cannot be turned into a prompt
            outcome = EditOutcome("refused", 0.0, 0.0, "", "", False, 0, 0, reason=error.message)
        return {"id": edit.id, "seconds": time.perf_counter() - started, "outcome": _outcome_values(outcome)}

    def _scores(self, runtime: Runtime, said: References, due: Sequence[int]) -> dict[str, list[dict[str, Any]]]:
        known = self._known() if self.editor.is_base else {}  # nothing that it does changes a score
        probes = {i: list(probes_of(self.edits[i - 1])) for i in due if str(i) not in known}
        whole = [probe for group in probes.values() for probe in group]
        found = iter(run_probes(runtime, self.editor, whole, references=said, yardstick=self.yardstick))
        fresh = {str(i): [_score_values(next(found)) for _ in group] for i, group in probes.items()}
        return {i: fresh.get(i) or known[i] for i in map(str, due)}

    def _known(self) -> dict[str, list[dict[str, Any]]]:
        return {i: scores for line in self.journal.lines for i, scores in line["scores"].items()}

    def _keep(self, line: dict[str, Any]) -> None:
        self.journal.add(line)
        if self._save() or self.finished:
            self.journal.save(self.editor)


def _unedited(edit: Edit) -> Probe:
    """Return an edit's own question as one that is asked of the base."""
    return Probe(edit.id, "loc_image" if edit.images else "loc_text", Query(edit.images, edit.question))


def _answer(runtime: Runtime, base: BaseAnswers, edit: Edit) -> str:
    """Return the base's greedy answer to an edit's question."""
    (reference,) = base([_unedited(edit)])
    return runtime.prompter.text(list(reference.tokens))


def _remember(memory: Memory, t: int, edit: Edit, outcome: Mapping[str, Any]) -> None:
    if outcome["status"] != "refused":
        memory.add(t, edit.subject, edit.content)
    memory.see(t, ((int(number), margin) for number, margin in outcome["looks"].items()))


def _outcome_values(outcome: EditOutcome) -> dict[str, Any]:
    return {
        "status": outcome.status,
        "reason": outcome.reason,
        "nll_before": outcome.nll_before,
        "nll_after": outcome.nll_after,
        "answer_before": outcome.answer_before,
        "answer_after": outcome.answer_after,
        "writes": outcome.writes,
        "cost": outcome.cost,
        "looks": {str(number): margin for number, margin in outcome.looks.items()},
    }


def _score_values(score: ProbeScore) -> dict[str, Any]:
    return {
        "kind": score.probe.kind,
        "hop": score.probe.hop,
        "values": score.values,
        "answer": score.answer,
        "base": score.base_answer,
    }


def _check_answers(edits: Sequence[Edit], yardstick: Yardstick) -> None:
    for edit in edits if yardstick.prefix == "gold" else ():
        for asked in edit.locality:
            if asked.answer is None:
                raise DataError(
                    f"edit `{shorten(edit.id)}`: locality question `{shorten(asked.question)}` has no answer",
                    "these metrics are measured on it: give it one, or take other --metrics",
                )


def _reproduce(
    checkpoint: Checkpoint,
    editor: Editor,
    options: RunOptions,
    suite: EditSuite,
    edits: Sequence[Edit],
    machine: Machine,
) -> dict[str, Any]:
    return {
        "editor": options.editor,
        "constants": editor.constants(),
        "base": fingerprint(checkpoint, checkpoint.tensors),
        "template": load_prompter(checkpoint).template,
        "suite": suite.name,
        "file": suite.pools["evaluation"].sha256,
        "edits": sha256_bytes(
            canonical_json([[edit.id, edit.content, probes_hash(probes_of(edit))] for edit in edits]).encode()
        ),
        "versions": versions(machine),
        "seed": editor.constants().get("seed"),
    }


def _key(reproduce: Mapping[str, Any], schedule: Schedule, yardstick: Yardstick) -> str:
    cells = [list(readout.cells) for readout in schedule.readouts()]
    measured = [asdict(yardstick), list(METRICS)]
    return sha256_bytes(canonical_json([reproduce, cells, measured]).encode())[:32]


def _base_key(reproduce: Mapping[str, Any]) -> str:
    facts = [reproduce["base"], reproduce["template"], reproduce["constants"].get("system", ""), reproduce["versions"]]
    return sha256_bytes(canonical_json(facts).encode())[:32]
