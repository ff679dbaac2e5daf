"""`more bench`: the cost of an edit on this machine, part by part, beside its unavoidable work.

The stream runs through `more edit` itself, in a temporary folder: on a copy of the model's state, or on a new one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.clock import running
from more_cli.demo.files import demo_model_dir
from more_cli.errors import UsageError
from more_cli.evaluation.metrics import Estimate
from more_cli.files import sha256_file
from more_cli.model.families import family_in
from more_cli.model.machine import Machine
from more_cli.model.versions import versions
from more_cli.ops.edit import EditReport, Listener, edit_file
from more_cli.ops.init import initialise
from more_cli.ops.plan import plan
from more_cli.ops.preparing import Inputs
from more_cli.options import EditOptions
from more_cli.progress import Progress, no_progress
from more_cli.runner.costs import PeakMemory
from more_cli.store.entry import Entry
from more_cli.store.snapshots import snapshots_folder
from more_cli.store.state import load_state
from more_cli.store.status import Status
from more_cli.store.target import Target
from more_cli.suites.embedded import suite_folder
from more_lab.bench.floor import Floor, Peer
from more_lab.bench.random_edits import write_random_edits
from more_lab.bench.timing import PARTS, Lap, Stopwatch
from more_lab.experiments.scaling import Trend, median, trend

WARM_UP = 1
"""Edits at the start that only sums count, no trend or ratio: the first one allocates what the others reuse."""
LIMIT = 24
"""Edits if neither a file nor a number is given."""


@dataclass(frozen=True)
class BenchOptions:
    """What to measure."""

    edits: Path | None = None
    """None for random edits."""
    anchors: Path | None = None
    """Of a new state."""
    offered: Path | None = None
    """Anchors of a new state if `anchors` is None and its recipe uses anchors."""
    recipe: str | None = None
    """If given, a new state is measured instead of a copy; likewise `settings`."""
    settings: tuple[str, ...] = ()
    image_root: Path | None = None
    limit: int | None = None
    save_every: int = 10
    seed: int = 0
    """Of the random edits."""
    floor: bool = False
    peers: bool = False


def samples_for(model: Path, limit: int | None, *, fresh: bool) -> tuple[Path | None, Path | None, int | None]:
    """Return a file of edits for a model, anchors for a `fresh` state of it, and how many edits to take.

    The files are those of the embedded suite for the embedded model or a copy of it, and None for any other model.
    """
    weights, own = (folder / "model.safetensors" for folder in (model, demo_model_dir()))
    same = (
        weights.is_file() and weights.stat().st_size == own.stat().st_size and sha256_file(weights) == sha256_file(own)
    )
    if not same:
        return None, None, limit
    suite = suite_folder("e-vqa-mini")
    return suite / "eval.json", suite / "anchors.jsonl" if fresh else None, limit or LIMIT


@dataclass
class Measured:
    """Measurements of one edit."""

    id: str
    status: Status
    writes: int
    lap: Lap
    state_bytes: int
    """Size of the sidecar, as last written."""
    floor: float | None = None
    """Seconds of the bare loop for the same writes."""
    peers: list[float] = field(default_factory=list)
    """Seconds of a LoRA step on each of the batches that were written."""


@dataclass
class BenchReport:
    """Measurements of a stream."""

    model: Path
    source: str
    """The stream."""
    versions: dict[str, str]
    edits: list[Measured] = field(default_factory=list)
    saving: float = 0.0
    """Seconds of writing the sidecar, in all."""
    ledger_bytes: int = 0
    """Bytes that the stream added to ledger and images."""
    interrupted: bool = False

    @property
    def seconds(self) -> float:
        """Seconds of all edits and of writing the sidecar."""
        return sum(edit.lap.seconds for edit in self.edits) + self.saving

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by part, over all edits."""
        return {part: sum(edit.lap.parts[part] for edit in self.edits) for part in PARTS} | {"sidecar": self.saving}

    @property
    def warm(self) -> list[Measured]:
        """The edits after the first."""
        return self.edits[WARM_UP:] or self.edits

    @property
    def trends(self) -> dict[str, Trend]:
        """How time, memory and state change over the stream."""
        written = [edit for edit in self.warm if edit.lap.steps]
        peaks = [float(edit.lap.peak) for edit in self.warm if edit.lap.peak is not None]
        found = {
            "latency_seconds": trend([edit.lap.seconds for edit in self.warm]),
            "seconds_per_write": trend([edit.lap.seconds / len(edit.lap.steps) for edit in written]),
            "peak_memory_bytes": trend(peaks),
            "state_bytes": trend([float(edit.state_bytes) for edit in self.warm]),
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def ratios(self) -> dict[str, Estimate]:
        """Medians over edits of ratios between times measured side by side."""
        floors = [(edit.lap, edit.floor) for edit in self.warm if edit.floor]
        pairs = [(ours, theirs) for edit in self.warm for ours, theirs in _steps(edit)]
        later = [(ours, theirs) for edit in self.warm for ours, theirs in _steps(edit)[1:]]
        found = {
            "edit_over_floor": [lap.seconds / floor for lap, floor in floors],
            "step_over_floor": [sum(lap.steps) / floor for lap, floor in floors],
            "lora_step_over_step": [theirs / ours for ours, theirs in pairs],
            "lora_step_over_later_step": [theirs / ours for ours, theirs in later],
        }
        return {name: median(values) for name, values in found.items() if values}


def _steps(edit: Measured) -> list[tuple[float, float]]:
    """Return the seconds of each write, ours and LoRA's; none where a write ran in several passes."""
    return list(zip(edit.lap.steps, edit.peers, strict=True)) if len(edit.lap.steps) == len(edit.peers) else []


def bench(target: Target, options: BenchOptions, machine: Machine, progress: Progress = no_progress) -> BenchReport:
    """Run a stream through the editor and measure it; the user's model, state and ledger are only read.

    Raises:
        UsageError: nothing is left to measure, or PEFT is asked for and not installed.
        StreamErrors: the file of edits has problems.
        StateError: model or state do not fit.
    """
    if options.peers:
        Peer.require()
    with tempfile.TemporaryDirectory(prefix="more-bench-") as folder:
        scratch = Target(target.model, Path(folder) / "state.more")
        stream = options.edits or _random_edits(target.model, Path(folder) / "edits", options)
        _prepare(target, scratch, options, machine, progress)
        source = str(options.edits) if options.edits else f"random edits, seed {options.seed}"
        report = BenchReport(target.model, source, versions(machine))
        before = _bytes(scratch.folder)
        run = _Run(scratch, options, machine, report, progress)
        ran = run.through(stream)
        report.interrupted, report.saving = ran.interrupted, run.watch.saving
        report.ledger_bytes = _bytes(scratch.folder) - before
    if not report.edits and not ran.interrupted:
        raise UsageError(f"every edit of `{source}` is in the state already", "give other edits, or --recipe")
    return report


def _random_edits(model: Path, folder: Path, options: BenchOptions) -> Path:
    sees = family_in(open_checkpoint(model).config).sees
    return write_random_edits(folder, options.limit or LIMIT, options.seed, pictured=sees)


def _prepare(target: Target, scratch: Target, options: BenchOptions, machine: Machine, progress: Progress) -> None:
    """Copy the user's state or, if there is none or other options are given, create a new one."""
    if target.sidecar.exists() and not (options.recipe or options.settings or options.anchors):
        shutil.copyfile(target.sidecar, scratch.sidecar)
        if target.folder.exists():
            shutil.copytree(target.folder, scratch.folder, ignore=shutil.ignore_patterns("lock", "snapshots"))
    else:
        recipe = plan(scratch, options.recipe, options.settings).recipe
        inputs = Inputs(anchors=options.anchors or (options.offered if recipe.uses_anchors else None))
        initialise(scratch, options.recipe, options.settings, inputs, machine, progress)


class _Run(Listener):
    """Listens to `more edit`, to measure each edit from start to end."""

    def __init__(
        self, target: Target, options: BenchOptions, machine: Machine, report: BenchReport, progress: Progress
    ) -> None:
        self.target, self.options, self.machine, self.report = target, options, machine, report
        self.watch = Stopwatch(machine.device)
        self._progress = progress
        self._peak = PeakMemory(machine.device)
        self._held: int | None = None
        self._beside: tuple[Floor | None, Peer | None] | None = None

    def through(self, stream: Path) -> EditReport:
        options = EditOptions(
            image_root=self.options.image_root, limit=self.options.limit, save_every=self.options.save_every
        )
        with running(self.watch):
            return edit_file(self.target, stream, options, self.machine, self._starts, self)

    def _starts(self, done: int, total: int | None, text: str) -> None:
        self._progress(done, total, text)
        if self._held is None:
            self._held = self._peak.held()
        self._peak.restart()
        self.watch.start()

    def edited(self, entry: Entry, status: Status, *, new: bool, supersedes: Sequence[str] = ()) -> None:
        if not new:
            return
        lap, peak = self.watch.stop(), self._peak.peak()
        if peak is not None and self._held is not None:
            lap.peak = max(0, peak - self._held)
        found = Measured(entry.id, entry.status, len(lap.steps), lap, self.target.sidecar.stat().st_size)
        if lap.batches:
            floor, peer = self._side_by_side()
            found.floor = floor.seconds(lap.batches) if floor else None
            found.peers = peer.seconds(lap.batches) if peer else []
        lap.batches = []
        self.report.edits.append(found)

    def _side_by_side(self) -> tuple[Floor | None, Peer | None]:
        """Return what is timed beside the editor, created once the model is loaded."""
        if self._beside is None:
            assert self.watch.runtime is not None
            runtime, records = self.watch.runtime, load_state(self.target.sidecar).meta.sites
            self._beside = (
                Floor(runtime, records) if self.options.floor else None,
                Peer(runtime, records) if self.options.peers else None,
            )
        return self._beside


def _bytes(folder: Path) -> int:
    """Return the bytes of a state's folder without its snapshots, whose sum is bounded."""
    files = (path for path in folder.rglob("*") if path.is_file() and snapshots_folder(folder) not in path.parents)
    return sum(path.stat().st_size for path in files)
