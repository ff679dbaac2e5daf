"""`more demo`: the whole workflow on the embedded model, with answers before and after."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from more_cli.demo.files import demo_model_dir
from more_cli.files import replacing_directory
from more_cli.model.machine import Machine
from more_cli.ops.edit import EditReport, edit_file
from more_cli.ops.evaluate import EvalReport, evaluate_state
from more_cli.ops.init import InitReport, initialise
from more_cli.ops.merge import MergeReport, merge
from more_cli.ops.preparing import Inputs
from more_cli.options import EditOptions, MergeOptions
from more_cli.progress import Progress, no_progress
from more_cli.recipe.files import data_folder
from more_cli.store.names import sidecar_path
from more_cli.store.target import Target

MARKER = "DEMO"
"""A file that marks a folder as written by the demo: only such a folder is ever replaced."""

MERGED = "llava-edited"
"""The merged model: the last that the demo writes."""


@dataclass(frozen=True)
class DemoReport:
    """Results of the demo, step by step."""

    folder: Path
    init: InitReport
    edit: EditReport
    evaluation: EvalReport
    merge: MergeReport
    wall_seconds: float

    @property
    def answers_at_end(self) -> dict[str, str]:
        """Greedy answer of every edit after the last one: the target if the edit holds."""
        answers = {entry.id: entry.target for entry in self.edit.entries}
        return answers | {scores.id: scores.shown.answer or "" for scores in self.evaluation.failing}

    @property
    def holding(self) -> int:
        """Number of edits whose greedy answer is the target after the last one."""
        return self.evaluation.edits - len(self.evaluation.failing)


def is_finished(folder: Path) -> bool:
    """Return whether a folder has all that the demo writes; one that was interrupted has no merged model."""
    return (folder / MARKER).is_file() and (folder / MERGED).is_dir()


def run_demo(folder: Path, *, force: bool = False, progress: Progress = no_progress) -> DemoReport:
    """Copy the embedded model and sample edits into `folder`, then init, edit, eval and merge there.

    A demo that was interrupted goes on where it stopped.

    Raises:
        UsageError: the folder is not empty and not a demo's.
    """
    started = time.monotonic()
    if force or not (folder / MARKER).is_file():
        with replacing_directory(folder, force, marker=MARKER) as scratch:
            shutil.copytree(demo_model_dir(), scratch / "llava")
            shutil.copytree(data_folder("sample_edits"), scratch / "sample_edits")
            (scratch / MARKER).write_text("written by `more demo`\n", encoding="utf-8")
    model = folder / "llava"
    target, machine = Target(model, sidecar_path(model)), Machine()
    init = initialise(target, inputs=Inputs(anchors=folder / "sample_edits" / "anchors.jsonl"))
    edit = edit_file(target, folder / "sample_edits" / "edits.jsonl", EditOptions(), machine, progress)
    evaluation = evaluate_state(target, machine, progress, ask_base=True)
    merged = merge(target, folder / MERGED, machine, MergeOptions(verify=True), progress)
    return DemoReport(folder, init, edit, evaluation, merged, time.monotonic() - started)
