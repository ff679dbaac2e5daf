"""Editors that are fitted before their first edit: each is fitted once, and cached by everything that decides it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from more_cli.clock import Every
from more_cli.editors.base import EditContext, Editor, EditRequest, FitData
from more_cli.editors.outcome import score_edit
from more_cli.errors import UsageError
from more_cli.files import disk_errors, sha256_json, write_whole
from more_cli.inputs.edits import Edit
from more_cli.model.runtime import Runtime
from more_cli.ops.calibrate import stream_digest
from more_cli.progress import Progress, no_progress
from more_cli.runner.report import FitReport
from more_cli.suites.catalog import FIT
from more_cli.suites.load import EditSuite
from more_cli.text import canonical_json, counted

HELD_OUT = 20
"""Edits of the calibration pool, the first ones, that check a fit, and that calibration tries settings on. An editor is
fitted on the suite's pool `fit` or, without one, on the rest of the calibration pool."""
WATCHED = 64
"""Edits of the calibration pool, the next ones, that say when a training ends."""
SPARED = 5
"""Without a pool `fit`, one in so many of the rest of the calibration pool at most is watched."""
SAVE_SECONDS = 20.0
"""How often an unfinished fit is saved."""
FITTED, UNFINISHED = "fitted.safetensors", "unfinished.safetensors"


class Fits:
    """The fitted editors of one model and suite, in a folder of the cache."""

    def __init__(self, folder: Path, suite: EditSuite, facts: Sequence[object], progress: Progress = no_progress):
        self._folder, self._suite, self._facts, self._progress = folder / "fits", suite, facts, progress

    def digest(self, editor: Editor) -> str | None:
        """Return the key of an editor's fit; None if it needs none.

        Raises:
            UsageError: it needs one, and the suite has too few calibration edits.
        """
        if "fit" not in editor.capabilities:
            return None
        pools = [stream_digest(pool) for pool in self._edits(editor)]
        facts = [editor.name, editor.fit_constants() | editor.teaching.changed, pools, *self._facts]
        return sha256_json(facts)

    def prepare(self, editor: Editor, runtime: Runtime, *, again: bool = False) -> FitReport | None:
        """Fit an editor, or load its fit; an interrupted fit continues. Returns None if it needs none."""
        key = self.digest(editor)
        if key is None:
            return None
        folder = self._folder / key[:32]
        report = None if again else self._load(editor, folder / FITTED)
        return report or self._fit(editor, runtime, key, folder)

    def known(self, editor: Editor) -> FitReport | None:
        """Load the fit of an editor that was fitted before; None if there is none."""
        key = self.digest(editor)
        return None if key is None else self._load(editor, self._folder / key[:32] / FITTED)

    def _fit(self, editor: Editor, runtime: Runtime, key: str, folder: Path) -> FitReport:
        (edits, held_out, watched), started = self._edits(editor), time.monotonic()
        unfinished = folder / UNFINISHED
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        due = Every(SAVE_SECONDS)
        data = FitData(
            edits,
            held_out,
            watched,
            load=lambda: _read(unfinished)[0] or None,
            save=lambda tensors: _write(unfinished, tensors(), {}) if due() else None,
            progress=lambda done, total, text: self._progress(done, total, f"fitting {editor.name}: {text}"),
        )
        with editor.taught(runtime):
            facts = editor.fit(data)
        right = self._right(editor, runtime, held_out)
        report = FitReport(key, facts, len(edits), len(held_out), right, round(time.monotonic() - started, 1))
        _write(folder / FITTED, editor.fitted(), vars(report))
        with suppress(OSError):
            unfinished.unlink()
        return report

    def _right(self, editor: Editor, runtime: Runtime, edits: Sequence[Edit]) -> int:
        """Return how many edits the editor learns, each alone on the fitted editor without edits."""
        right = 0
        for number, edit in enumerate(edits):
            self._progress(number, len(edits), f"checking {editor.name}")
            request = EditRequest.of(edit)
            with editor.taught(runtime):
                outcome = editor.edit(request, EditContext())
                postponed = editor.catch_up() > 0
                asked = runtime.encode(request.query, request.target)
                right += score_edit(runtime, asked).right if postponed else outcome.after.right
            editor.reset()
        return right

    def _load(self, editor: Editor, path: Path) -> FitReport | None:
        tensors, report = _read(path)
        if not report:
            return None
        editor.load_fitted(tensors)
        return FitReport(**report)

    def _edits(self, editor: Editor) -> tuple[list[Edit], list[Edit], list[Edit]]:
        """Return the edits that an editor is fitted on, the held-out ones, and the watched ones."""
        pools = self._suite.pools
        calibration = pools.get("calibration", ())
        rest = calibration[HELD_OUT:]
        watched = rest[:WATCHED] if FIT in pools else rest[: min(WATCHED, len(rest) // SPARED)]
        edits = pools.get(FIT, rest[len(watched) :])
        if not edits:
            has = f"suite `{self._suite.name}` has {counted(len(calibration), 'calibration edit')}"
            needs = f"editor `{editor.name}` is fitted on those after the first {HELD_OUT}"
            raise UsageError(f"{has}, and {needs}", "choose another editor or suite")
        return list(edits), list(calibration[:HELD_OUT]), list(watched)


def _write(path: Path, tensors: Mapping[str, Tensor], report: Mapping[str, Any]) -> None:
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_whole(path, save(kept, metadata={"more": canonical_json(dict(report))}))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            report = json.loads((file.metadata() or {})["more"])
            return {name: file.get_tensor(name) for name in file.keys()}, report  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError, KeyError, ValueError):
        return {}, {}
