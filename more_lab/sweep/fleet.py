"""One stream of edits on many checkpoints: each gets a state of its own and, if asked for, a merge or an export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from more_cli.errors import MoreError, StateError, UsageError
from more_cli.evaluation.metrics import Estimate
from more_cli.files import disk_errors, sha256_json, write_whole
from more_cli.inputs.edits import read_edits
from more_cli.ops.edit import edit_file
from more_cli.ops.evaluate import evaluate_state
from more_cli.ops.export import export
from more_cli.ops.merge import merge
from more_cli.options import EditOptions, ExportOptions, MergeOptions
from more_cli.progress import Progress
from more_cli.recipe.files import load_recipe, pick_recipe
from more_cli.recipe.schema import Recipe
from more_cli.runner.plan import Base, edits_hash
from more_cli.store.ledger import Ledger
from more_cli.store.target import Target
from more_cli.text import counted
from more_lab.sweep.file import Fleet, SweepFile, Then
from more_lab.sweep.folder import Done
from more_lab.sweep.jobs import reason
from more_lab.sweep.place import Place
from more_lab.sweep.report import estimate_of
from more_lab.sweep.trials import Setup

WRITTEN: Mapping[Then, str] = {"merge": "merged", "export": "adapter", "none": ""}
"""What is written beside a state, by what the file asks for."""
LEDGER = "ledger"
"""Value of a part that no result has, for ledgers hold times: the hash of the state's last ledger line."""


@dataclass(frozen=True)
class Member:
    """One checkpoint of a fleet."""

    label: str
    """Name of its folder in the output."""
    model: Path
    out: Path
    stream: Path
    options: EditOptions
    then: Then
    place: Place
    threads: int
    group: str
    key: str = ""
    problem: str = ""
    """Why it cannot be edited; it has no key then."""

    def run(self, progress: Progress) -> tuple[dict[str, Any], bool]:
        """Apply the edits, score the state, and write what was asked for."""
        with disk_errors(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        target, machine = self.target, self.place.machine
        self._claim(target)
        edited = edit_file(target, self.stream, self.options, machine, progress)
        if edited.interrupted:
            raise KeyboardInterrupt
        head = Ledger(target.folder).head  # before the scores: a line that comes later makes them old
        scored = evaluate_state(target, machine, progress)
        out = self.out / WRITTEN[self.then]
        if self.then == "merge":
            merge(target, out, machine, MergeOptions(force=True), progress)
        elif self.then == "export":
            export(target, out, machine, ExportOptions(force=True), progress)
        values = {
            "edits": edited.total,
            "counts": edited.counts,
            "failed": edited.failed,
            "state": f"{self.label}/{target.sidecar.name}",
            "written": f"{self.label}/{WRITTEN[self.then]}" if WRITTEN[self.then] else "",
            "metrics": {name: asdict(value) for name, value in scored.listed.items()},
            LEDGER: head,
        }
        return values, not edited.skipped

    @property
    def target(self) -> Target:
        """The checkpoint, and its state in the output."""
        return Target(self.model, self.out / f"{self.label}.more")

    def stands(self, values: Mapping[str, Any]) -> bool:
        """Return whether its state is the one that was scored: no `edit --retry` or `revert` came after."""
        try:
            return Ledger(self.target.folder).head == values.get(LEDGER)
        except StateError:  # a damaged ledger: running it says so
            return False

    def _claim(self, target: Target) -> None:
        """Note whose state this is, before it is made."""
        note = self.out / "key"
        with disk_errors(note):
            owner = note.read_text(encoding="utf-8") if note.exists() else ""
            if target.sidecar.exists() and owner != self.key:
                what = f"`{target.sidecar}` was made of other edits, settings, weights or versions"
                raise UsageError(what, f"name another folder with -o, or remove `{self.out}`")
        write_whole(note, self.key.encode())


def make_fleet(sweep: SweepFile, setup: Setup, out: Path) -> list[Member]:
    """Return the members of a fleet in the order of its file; the edits are checked, no model is loaded.

    Raises:
        StreamErrors: the file of edits has problems.
        DataError: there is no such file.
        UsageError: unknown recipe or value.
    """
    fleet, place, threads = sweep.table, setup.place, setup.threads
    assert isinstance(fleet, Fleet)
    stream = sweep.beside(fleet.edits)
    edits = read_edits(stream).edits
    recipe = sweep.recipe(fleet.recipe) if fleet.recipe else None
    numbers = _recipe(sweep, recipe).canonical() if recipe else None
    options = EditOptions(recipe=recipe, settings=fleet.settings, anchors=fleet.anchors)
    asked = [edits_hash(edits), numbers, fleet.settings, fleet.anchors, fleet.then, place.versions(threads)]
    members = list[Member]()
    for label, model in _labelled(setup.models.values()):
        key, problem = "", ""
        try:
            base = Base(model)
            key = sha256_json([label, base.fingerprint, base.template, *asked])[:32]
        except MoreError as error:  # a broken checkpoint: the others are still edited
            problem = reason(error)
        else:
            _recipe(sweep, recipe or pick_recipe(str(base.checkpoint.config.get("model_type", ""))))
        group = counted(len(edits), "edit")
        members.append(
            Member(label, model, out / label, stream, options, fleet.then, place, threads, group, key, problem)
        )
    return members


def _recipe(sweep: SweepFile, name: str) -> Recipe:
    """Return the recipe of a checkpoint, with the settings of the fleet."""
    assert isinstance(sweep.table, Fleet)
    try:
        return load_recipe(name, sweep.table.settings)
    except UsageError as error:
        raise sweep.blamed(error) from None


def _labelled(models: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield every folder with its name, and a number if an earlier one has the same."""
    taken = set[str]()
    for model in models:
        name = model.resolve().name
        free = (label for number in count(1) if (label := f"{name}-{number}" if number > 1 else name) not in taken)
        taken.add(label := next(free))
        yield label, model


@dataclass(frozen=True)
class FleetReport:
    """What became of the checkpoints of a fleet."""

    file: SweepFile
    members: Sequence[Member]
    done: Done

    @property
    def lines(self) -> dict[str, dict[str, Any]]:
        """The results by key."""
        return {
            member.key: {"schema": "more.sweep.member/1", "model": member.label, **_results(values)}
            for member in self.members
            if (values := self.done.values.get(member.key)) is not None
        }

    @property
    def failed_edits(self) -> dict[str, Sequence[str]]:
        """Edits that do not stand, by label."""
        return {line["model"]: line["failed"] for line in self.lines.values() if line["failed"]}


def _results(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != LEDGER}


def metrics_of(line: Mapping[str, Any]) -> dict[str, Estimate]:
    """Return the metrics of one result."""
    return {name: estimate_of(value) for name, value in line["metrics"].items()}
