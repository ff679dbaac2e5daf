"""What decides the numbers of a run on a suite: known before a model is loaded, and the key of everything cached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from more_cli.checkpoint.folder import GENERATION
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.reader import Checkpoint, fingerprint
from more_cli.editors.base import Editor
from more_cli.editors.registry import EditorOptions, entry_of, package_of
from more_cli.errors import UsageError
from more_cli.evaluation.names import METRICS, Yardstick
from more_cli.evaluation.per_edit import probes_hash
from more_cli.evaluation.probes import probes_of
from more_cli.evaluation.streams import Writing, writes_together
from more_cli.files import default_cache, sha256_bytes, sha256_file, sha256_json
from more_cli.inputs.edits import Edit
from more_cli.model.loading import load_prompter
from more_cli.ops.anchors import identities, leave_out
from more_cli.ops.auto_anchors import AUTO
from more_cli.recipe.tables import asking_of
from more_cli.runner.anchors import HeldAnchors, choose_anchors
from more_cli.runner.protocols import Protocol, Schedule, Scored
from more_cli.runner.references import require_answers
from more_cli.suites.load import EditSuite

Value = TypeVar("Value")


@dataclass(frozen=True)
class Preset:
    """The metrics of one source."""

    name: str
    title: str
    protocols: tuple[Protocol, ...]
    yardstick: Yardstick
    columns: Mapping[str, str]
    """Full names of our metrics, by the source's name."""
    averaged: bool = False
    """Whether the source reports their mean."""
    notices: tuple[str, ...] = ()
    """Differences from the source, one line each."""

    def pick(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the columns that were measured."""
        return {column: values[name] for column, name in self.columns.items() if name in values}

    def average(self, values: Mapping[str, Sequence[float]]) -> float | None:
        """Return the mean over the columns of one edit's values; None if a column is missing or no mean is reported."""
        columns = list(self.pick(values).values())
        if not self.averaged or len(columns) < len(self.columns):
            return None
        return sum(sum(column) / len(column) for column in columns) / len(columns)


@dataclass(frozen=True)
class RunOptions:
    """How an editor runs on a suite."""

    editor: str = "more"
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    limit: int | None = 100
    """First edits of the suite; None for all."""
    order: int = 0
    """Seed of the order of these edits; 0 for that of the file."""
    writing: Writing = "online"
    """How the stream is written; written together, it is scored after its last edit alone."""
    scored: Scored = field(default_factory=Scored)
    cache: Path | None = None
    """Folder that caches base answers and finished runs; by default `default_cache`."""
    again: bool = False
    """Ignore finished runs and measure again."""
    preset: Preset | None = None
    """Preset of metrics; by default every metric by its full name."""
    anchors: Path | Literal["auto"] | None = None
    """Anchors file, by default the one that the editor's recipe names; or `auto`: made from the calibration pool."""
    unscored: frozenset[tuple[str, str]] = frozenset()
    """Identities of anchors of other editors: probes that are one of them are left out as well."""

    @property
    def folder(self) -> Path:
        """Folder for everything that another run can reuse."""
        return self.cache or default_cache()

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """The protocols that were asked for, those of the preset, or the default ones."""
        named = self.scored.protocols or (self.preset.protocols if self.preset else ())
        return named or (("final", "online") if self.writing == "online" else ("final",))

    @property
    def yardstick(self) -> Yardstick:
        """How locality is measured."""
        return self.preset.yardstick if self.preset else Yardstick()


@dataclass(frozen=True)
class Base:
    """The untouched checkpoint of a run."""

    model: Path

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The opened folder."""
        return open_checkpoint(self.model)

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """Hashes of its files and all its weights."""
        return fingerprint(self.checkpoint, self.checkpoint.tensors)

    @cached_property
    def generation(self) -> str | None:
        """Hash of its settings of generation, which greedy answers follow; they are no part of what an edit is."""
        path = self.model / GENERATION
        return sha256_file(path) if path.is_file() else None

    @cached_property
    def template(self) -> str:
        """Chat template of its prompts."""
        return load_prompter(self.checkpoint).template


@dataclass(frozen=True)
class Plan:
    """A run that can start."""

    editor: Editor
    anchors: HeldAnchors
    edits: Sequence[Edit]
    """In the order of the stream."""
    left_out: int
    """Locality probes that are anchors too: they are not scored."""
    reproduce: dict[str, Any]
    """Everything that decides the numbers, but what is scored when."""


def plan_run(base: Base, suite: EditSuite, options: RunOptions, versions: Mapping[str, str]) -> Plan:
    """Make the editor of a run and check its edits; no model is loaded.

    Raises:
        UsageError: unknown editor or setting, or anchors or joint writing for an editor that knows none.
        StreamErrors: an image of the suite is missing or unreadable.
        DataError: the preset measures locality on gold answers, and a question has none.
        StateError: the checkpoint cannot be edited.
    """
    editor = entry_of(options.editor).make(EditorOptions(base.model, options.recipe, options.settings))
    if options.writing != "online" and not writes_together(editor):
        hint = "leave --batch and --consolidate out; `lora-all` trains on all edits at once"
        raise UsageError(f"editor `{options.editor}` writes each edit as it comes, not several together", hint)
    questions = choose_anchors(editor, options.anchors, suite, options.limit)
    edits, left_out = leave_out(_stream(suite, options), options.unscored | identities(questions))
    require_answers(edits, options.yardstick)
    reproduce = {
        "editor": options.editor,
        "constants": editor.facts(),
        "base": base.fingerprint,
        "template": base.template,
        "suite": suite.name,
        "file": suite.pools["evaluation"].sha256,
        "edits": edits_hash(edits),
        "versions": {**versions, **package_of(options.editor)},
        "seed": editor.constants().get("seed"),
        **({"generation": base.generation} if base.generation else {}),
        **({"order": options.order} if options.order else {}),  # without, the keys of older runs stay
        **({"writing": options.writing} if options.writing != "online" else {}),
    }
    anchors = HeldAnchors(questions, options.folder / "anchors", base_key(reproduce))
    return Plan(editor, anchors, edits, left_out, reproduce | {"anchors": anchors.digest})


def _stream(suite: EditSuite, options: RunOptions) -> Iterable[Edit]:
    """Return the first edits of a suite in the order of the stream; every order has the same edits."""
    edits = suite.pools["evaluation"][: options.limit]
    if not options.order:
        return edits
    # By hash: no release of a random generator changes it.
    return sorted(edits, key=lambda edit: sha256_bytes(f"{options.order} {edit.id}".encode()))


def schedule_of(suite: EditSuite, options: RunOptions) -> Schedule:
    """Return what is scored after which edit; it is known before anything runs.

    Raises:
        UsageError: edits that are written together are to be scored before, or no edit would be scored.
    """
    available, scored = len(suite.pools["evaluation"]), options.scored
    edits = min(available, options.limit or available)
    if options.writing == "online":
        schedule = Schedule(edits, options.protocols, scored.checkpoints, scored.lags)
        found = [readout.protocol for readout in schedule.readouts()]
        if not found or ("lag" in scored.protocols and "lag" not in found):
            what = f"no edit of {edits} has as many after it as `--lags` says"
            raise UsageError(what, "name a smaller lag, or more edits")
        return schedule
    if early := [protocol for protocol in options.protocols if protocol != "final"]:
        hint = "leave --metrics out" if options.preset else "leave --protocol out, or name `final` alone"
        raise UsageError(f"edits are written together, after the last one: there is no protocol `{early[0]}`", hint)
    return Schedule(edits, options.protocols)


def edits_hash(edits: Iterable[Edit]) -> str:
    """Return the SHA-256 of edits with their probes, in order."""
    facts = [[edit.id, edit.content, probes_hash(probes_of(edit))] for edit in edits]
    return sha256_json(facts)


def run_key(reproduce: Mapping[str, Any], schedule: Schedule, yardstick: Yardstick) -> str:
    """Return the key of a run, 32 hex digits: equal keys have equal numbers."""
    cells = [list(readout.cells) for readout in schedule.readouts()]
    measured = [asdict(yardstick), list(METRICS)]
    return sha256_json([reproduce, cells, measured])[:32]


def base_key(reproduce: Mapping[str, Any]) -> str:
    """Return the key of the base's answers, 32 hex digits."""
    names = "base", "template", "generation"
    facts = [*(reproduce.get(name) for name in names), asking_of(reproduce["constants"]), reproduce["versions"]]
    return sha256_json(facts)[:32]


def anchors_of(text: str | None) -> Path | Literal["auto"] | None:
    """Return anchors as they are typed: a file, or `auto`."""
    return AUTO if text == AUTO else Path(text) if text else None
