"""`more run --calibrate N`: try N settings of an editor on edits that the suite does not score."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from more_cli.editors.base import Editor
from more_cli.editors.registry import EditorEntry
from more_cli.errors import UsageError
from more_cli.evaluation.probes import References, probes_of, run_probes
from more_cli.evaluation.streams import Stream
from more_cli.files import sha256_json, write_whole
from more_cli.inputs.edits import Edit
from more_cli.model.runtime import Runtime
from more_cli.ops.calibrate import MEASURED, measured, stream_digest
from more_cli.progress import Progress
from more_cli.runner.anchors import HeldAnchors
from more_lab.experiments.fits import Fits

EDITS = 20
"""Number of edits, the first of the calibration pool, that each setting runs on."""
RULE = (
    f"of the editor's settings in the order of its entry, its own first, the one with the best mean of "
    f"{', '.join(MEASURED)} (those there are probes for) after the last of {EDITS} calibration edits; "
    "of equal ones the first"
)


def settings_of(entry: EditorEntry, count: int) -> list[tuple[str, ...]]:
    """Return `count` settings to try: the editor as it is, then those of its entry."""
    return [(), *entry.tries][:count]


def best_setting(tried: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return the setting that `RULE` chooses among those that could be tried."""
    return tuple(max((trial for trial in tried if trial["score"] is not None), key=itemgetter("score"))["setting"])


def at_edge(tried: Sequence[Sequence[str]], chosen: Sequence[str]) -> list[str]:
    """Return the chosen constants, as KEY=VALUE, that are the smallest or the largest value tried.

    A better value may lie beyond. The editor's own value lies between those that are tried.
    """
    values: dict[str, list[float]] = {}
    for key, value in (_number(text) for setting in tried for text in setting):
        values.setdefault(key, []).append(value)
    found = ((text, *_number(text)) for text in chosen)
    return [text for text, key, value in found if value in (min(values[key]), max(values[key]))]


def _number(setting: str) -> tuple[str, float]:
    """Return the key and the value of a setting; a word, which has no order, is no number and equals nothing."""
    key, _, value = setting.partition("=")
    try:
        return key, float(value)
    except ValueError:
        return key, float("nan")


def try_settings(
    make: Callable[..., Editor],
    settings: Sequence[tuple[str, ...]],
    edits: Sequence[Edit],
    *,
    runtime: Runtime,
    references: References,
    anchors: HeldAnchors,
    fits: Fits,
    progress: Progress,
) -> dict[str, Any]:
    """Run the calibration edits once per setting, and return the score of each setting and the chosen one.

    `make` makes the editor with a setting.

    Raises:
        UsageError: the editor cannot be made as it is.
    """
    tried = list[dict[str, Any]]()
    probes = [probe for edit in edits for probe in probes_of(edit)]
    for number, setting in enumerate(settings):
        progress(number, len(settings), "calibrating " + (", ".join(setting) or "as it is"))
        try:
            editor = make(*setting)
        except UsageError as error:
            if not setting:
                raise
            tried.append({"setting": list(setting), "score": None, "reason": error.message})
            continue
        fits.prepare(editor, runtime)
        with anchors.attached(editor, runtime, fresh=True):
            Stream(editor, edits).run()
            editor.catch_up()
            scores = run_probes(runtime, editor, probes, generate=False, references=references)
        tried.append({"setting": list(setting), "score": round(measured(scores), 6), "reason": ""})
    chosen = list(best_setting(tried))
    found = {"rule": RULE, "edits": stream_digest(edits), "n": len(edits), "tried": tried}
    return found | {"chosen": chosen, "at_edge": at_edge(settings, chosen)}


class CachedCalibration:
    """The file of one calibration's result, so that a resumed run does not calibrate again."""

    def __init__(self, folder: Path, *facts: object) -> None:
        self._path = folder / f"{sha256_json(facts)[:32]}.json"

    def read(self) -> dict[str, Any] | None:
        """Return the result; None if the file is missing or damaged."""
        try:
            result = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return result if isinstance(result, dict) and "at_edge" in result else None

    def write(self, result: dict[str, Any]) -> None:
        """Write the result."""
        write_whole(self._path, json.dumps(result).encode())
