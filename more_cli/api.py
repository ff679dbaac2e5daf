"""The Python interface: a checkpoint with its state as an object, over the same functions as the commands.

    from more_cli import open_model

    with open_model("llava") as model:
        edited = model.edit("edits.jsonl")
        print(model.ask("What is on the left?", "tram.jpg").edited)

Nothing is printed. What goes wrong is a `MoreError` (`more_cli.errors`) with a message and a hint; an edit that could
not be learnt is a result, as on the command line.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, get_type_hints

from more_cli.checkpoint.folder import require_checkpoint
from more_cli.errors import UsageError
from more_cli.evaluation.gates import judge, parse_gate
from more_cli.files import StrPath
from more_cli.inputs.arguments import checked, require
from more_cli.inputs.images import pictures
from more_cli.model.machine import Machine
from more_cli.ops.ask import ANSWER_TOKENS, Answers, Asker, asked_as, asking, load_base
from more_cli.ops.assembly import AssemblyReport
from more_cli.ops.combine import combine
from more_cli.ops.edit import EditReport, edit_file
from more_cli.ops.evaluate import EvalReport, evaluate_probes, evaluate_state
from more_cli.ops.export import ExportReport, export
from more_cli.ops.log import LineFilter, LogReport, log
from more_cli.ops.merge import MergeReport, merge
from more_cli.ops.rebase import RebaseReport, rebase
from more_cli.ops.retry import retry
from more_cli.ops.revert import RevertReport, revert
from more_cli.ops.status import StatusReport, status
from more_cli.options import (
    CombineOptions,
    EditOptions,
    ExportOptions,
    FileOptions,
    MergeOptions,
    RebaseOptions,
    RevertOptions,
    typed_fields,
)
from more_cli.outputs.edits import EditResult
from more_cli.progress import Progress, no_progress
from more_cli.recipe.tables import Asking
from more_cli.store.names import current_path, file_of, sidecar_path
from more_cli.store.target import Target

if TYPE_CHECKING:
    import pandas as pd

    from more_cli.model.runtime import Runtime

Report = TypeVar("Report")
_Options = TypeVar("_Options")


@dataclass(frozen=True)
class Table(Sequence[Mapping[str, Any]], Generic[Report]):
    """Rows of a result, each a mapping from names to values, and the whole result as `report`."""

    rows: tuple[Mapping[str, Any], ...]
    report: Report

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a data frame.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UsageError("a data frame needs pandas", "pip install pandas") from None
        return pandas.DataFrame(list(self.rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        return self.rows[place]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)


@checked
def open_model(
    model: StrPath,
    state: StrPath | None = None,
    *,
    recipe: StrPath | None = None,
    settings: Iterable[str] = (),
    progress: Progress = no_progress,
    **machine: Any,
) -> Model:
    """Open a checkpoint folder, with its state if there is one.

    Args:
        model: Checkpoint in Hugging Face layout.
        state: State file, or the name of a state beside the checkpoint; by default the one that `more switch` chose,
            else `MODEL.more`.
        recipe: Name or TOML file, for the state that the first edit makes.
        settings: Changes of that recipe, each as `KEY=VALUE`.
        progress: Called with done, total and a text during long work.
        machine: Fields of `more_cli.model.machine.Machine`: device, dtype, attention, device_map, memory. A dtype or
            device of torch counts as its name.

    Raises:
        StateError: not a checkpoint.
    """
    named = {name: _named(value) for name, value in machine.items()}
    return Model(model, state, recipe, settings, _checked(Machine, **named), progress)


class Model:
    """A checkpoint with its state, made by `open_model`; a context manager.

    The model is loaded when it is first asked and kept until `close`, which the end of a `with` block calls. The lock
    of the state is held while `edit` and `revert` run; between two calls another process may edit, and the next call
    sees it. Threads that share the object take turns.
    """

    def __init__(
        self,
        model: StrPath,
        state: StrPath | None,
        recipe: StrPath | None,
        settings: Iterable[str],
        machine: Machine,
        progress: Progress,
    ) -> None:
        folder = Path(model)
        self.target = Target(folder, current_path(folder) if state is None else file_of(folder, Path(state)))
        self.machine = machine
        self._recipe = None if recipe is None else os.fspath(recipe)
        self._settings, self._progress = _several("settings", settings), progress
        self._runtime: Runtime | None = None
        self._asked: Asking | None = None
        self._lock, self._holder = threading.Lock(), 0
        require_checkpoint(self.target.model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory of the model; it is loaded again on the next use."""
        self._runtime = None

    @property
    @checked
    def state(self) -> StatusReport:
        """What the state contains now or, without one, what the first edit would make; loads no weights.

        Raises:
            StateError: the state does not fit its base.
        """
        return status(self.target, recipe=self._recipe, settings=self._settings)

    @checked
    def edit(self, edits: StrPath | Iterable[Mapping[str, Any]], **options: Any) -> Table[EditReport]:
        """Apply the edits that are not applied yet, as `more edit` does; the first one makes the state.

        Args:
            edits: A JSON Lines file, or edit lines as mappings.
            options: Fields of `more_cli.options.EditOptions`, such as `on_error="skip"` or `batch=True`.

        Returns:
            A row per edit that was applied. Edits that failed are in `report.failed`; after Ctrl-C
            `report.interrupted` is true, and the same call continues.

        Raises:
            StreamErrors: lines have problems, and `on_error` is `stop`.
            StateError: model, state or ledger do not fit, or another process holds the lock.
        """
        chosen = _checked(EditOptions, **{"recipe": self._recipe, "settings": self._settings} | _paths(options))
        stream = Path(edits) if isinstance(edits, str | os.PathLike) else _require_lines(edits)
        with self._turn(load=not chosen.dry_run) as loaded:
            return _results(edit_file(self.target, stream, chosen, self.machine, self._progress, runtime=loaded))

    @checked
    def retry(self, *ids: str | Sequence[str], settings: Iterable[str] = ()) -> Table[EditReport]:
        """Try edits again that are `not-learnt` or `refused`, those named or all, as `more edit --retry` does.

        `settings` change the recipe for this try alone, each as `KEY=VALUE`. Returns a row per edit that was tried.

        Raises:
            UsageError: an unknown id, an edit that did not fail, or an empty list of ids.
            StateError: there is no state, or another process holds the lock.
        """
        options, named = EditOptions(settings=_several("settings", settings)), _flat(ids)
        if ids and not named:
            raise UsageError("`ids` is an empty list", "name edits, or leave it out to try all that failed again")
        with self._turn() as loaded:
            return _results(retry(self.target, named, options, self.machine, self._progress, runtime=loaded))

    @checked
    def ask(
        self,
        question: str,
        *images: StrPath | Sequence[StrPath],
        merged: StrPath | None = None,
        max_tokens: int = ANSWER_TOKENS,
    ) -> Answers:
        """Ask the base and the edited model a question about images: paths, or `data:` URIs.

        `merged` is a merged checkpoint that is asked too.

        Raises:
            DataError: the question or an image cannot be used.
        """
        shown = pictures(_flat(images))
        with self.asking(merged=merged) as asker:
            return asker.ask(question, shown, max_tokens)

    @checked
    @contextmanager
    def asking(self, *, merged: StrPath | None = None) -> Iterator[Asker]:
        """Open the state once for several questions: `with model.asking() as asker: asker.ask(question, images)`.

        Its images are a list of paths, or `data:` URIs. Other methods that use the model wait for the end of the block
        in other threads, and are refused within it.

        Raises:
            StateError, UsageError: as `ask`.
        """
        with (
            self._turn() as loaded,
            asking(self.target, self.machine, merged=_path(merged), progress=self._progress, runtime=loaded) as asker,
        ):
            yield asker

    @checked
    def evaluate(
        self,
        probes: StrPath | None = None,
        *,
        image_root: StrPath | None = None,
        gates: Iterable[str] = (),
        ask_base: bool = False,
    ) -> Table[EvalReport]:
        """Score every edit that was asked for or, with `probes`, a file of questions, as `more eval` does.

        Returns:
            A row per question, with its kind, what was expected, the answer, whether it holds, and the value of every
            metric. `report.estimates` has the means with their intervals, `report.gates` the verdict on each gate such
            as `rel.gen_exact>=0.95`, and with `ask_base` `report.base_answers` the base's answers.

        Raises:
            StateError: there is no state, or it does not fit its base.
            UsageError: a gate cannot be read.
        """
        wanted, files = [parse_gate(gate) for gate in _several("gates", gates)], FileOptions(_path(image_root))
        with self._turn() as loaded:
            if probes is None:
                report = evaluate_state(self.target, self.machine, self._progress, ask_base=ask_base, runtime=loaded)
            else:
                report = evaluate_probes(
                    self.target, Path(probes), files, self.machine, self._progress, ask_base=ask_base, runtime=loaded
                )
        report.gates = judge(wanted, report.estimates, of_probes=probes is not None)
        rows = [
            {
                "edit": score.probe.edit,
                "kind": score.probe.kind,
                "question": score.probe.query.question,
                "expected": score.expected,
                "answer": score.answer,
                "holds": score.holds,
                **score.values,
            }
            for score in report.scores
        ]
        return Table(tuple(rows), report)

    @checked
    def merge(self, out: StrPath, **options: Any) -> MergeReport:
        """Write a standalone checkpoint that includes the edits to the folder `out`, as `more merge` does.

        `options` are fields of `more_cli.options.MergeOptions`, such as `verify=True` or `require_all=True`.

        Raises:
            FailedEditsError: with `require_all`, an edit does not stand; nothing is written.
            UsageError: `out` exists and may not be replaced.
        """
        return merge(self.target, Path(out), self.machine, _checked(MergeOptions, **_paths(options)), self._progress)

    @checked
    def export(self, out: StrPath, format: Literal["peft", "delta"] = "peft", **options: Any) -> ExportReport:
        """Write the edits as a PEFT adapter folder, or as one safetensors file of weight differences (`delta`).

        `options` are those of `more_cli.options.ExportOptions`: `rank`, and `force`. With a rank, `kept` in the report
        says what is left of each update.

        Raises:
            StateError: nothing is written yet, or the state does not fit its base.
            UsageError: `out` exists and may not be replaced.
        """
        chosen = _checked(ExportOptions, format=format, **options)
        return export(self.target, Path(out), self.machine, chosen, self._progress)

    @checked
    def log(self, id: str = "*", limit: int | None = None) -> Table[LogReport]:
        """Return the lines of the ledger, the oldest first: of ids that match a shell pattern, the last `limit`.

        Without a limit, and with 0, these are all.

        Raises:
            StateError: there is no state, or its ledger is damaged.
            UsageError: the limit is negative.
        """
        report = log(self.target, LineFilter(id=id), _at_least("limit", limit, 0) or None)
        rows = [
            EditResult.of_entry(line.entry, line.now).model_dump() | {"kind": line.entry.kind, "time": line.entry.time}
            for line in report.lines
        ]
        return Table(tuple(rows), report)

    @checked
    def revert(
        self, *ids: str | Sequence[str], last: int | None = None, to: int | None = None, dry_run: bool = False
    ) -> RevertReport:
        """Undo edits, as if they had never been applied: by id, the `last` few, or all after the first `to`.

        Raises:
            UsageError: an unknown id, or not exactly one of `ids`, `last` and `to`.
            StateError: another process holds the lock, or a stored image is missing.
        """
        options = _checked(RevertOptions, to=to, last=last, dry_run=dry_run)
        with self._turn(load=not dry_run) as loaded:
            return revert(self.target, _flat(ids), options, self.machine, self._progress, runtime=loaded)

    @checked
    def combine(
        self, *states: StrPath | Sequence[StrPath], out: StrPath, theirs: bool = False, dry_run: bool = False
    ) -> AssemblyReport:
        """Write the edits of this state and of others into the new state `out`, as `more combine` does.

        Raises:
            StreamErrors: edits contradict each other and `theirs` is not set, or two have the same id.
            StateError: bases, recipes or seeds differ, or a state is missing or damaged.
            UsageError: `out` exists with other edits.
        """
        base = self.target.model
        target = Target(base, file_of(base, Path(out)))
        paths = [self.target.sidecar, *(file_of(base, Path(state)) for state in _flat(states))]
        with self._turn(load=not dry_run) as loaded:
            return combine(paths, target, CombineOptions(theirs, dry_run), self.machine, self._progress, runtime=loaded)

    @checked
    def rebase(self, new_base: StrPath, out: StrPath | None = None, *, dry_run: bool = False) -> RebaseReport:
        """Apply the edits of this state to another version of its base, in a new state, as `more rebase` does.

        `out` is the new state's file or name, by default the state `main` of `new_base`. Edits that no longer hold are
        in `report.lost`.

        Raises:
            StateError: `new_base` has another architecture, the new state is there and is another, or an image is
                missing.
        """
        base = Path(new_base)
        target = Target(base, sidecar_path(base) if out is None else file_of(base, Path(out)))
        return rebase(self.target, target, RebaseOptions(dry_run), self.machine, self._progress)

    @contextmanager
    def _turn(self, *, load: bool = True) -> Iterator[Runtime | None]:
        """Load the model for one call or block, when that of another thread has ended; without `load` there is none."""
        if not load:
            yield None
            return
        if self._holder == threading.get_ident():
            raise UsageError(
                "the model is in use by `with model.asking()`, or by a call that has not ended",
                "within the block ask with its `asker`; do all else after it",
            )
        with self._lock:
            self._holder = threading.get_ident()
            try:
                yield self._loaded()
            finally:
                self._holder = 0

    def _loaded(self) -> Runtime:
        asked = asked_as(self.target, self._recipe, self._settings)
        if self._runtime is None or asked != self._asked:  # another process may have made a state with another prompt
            self._runtime = load_base(self.target, self.machine, self._progress, self._recipe, self._settings)
            self._asked = asked
        return self._runtime


def _results(report: EditReport) -> Table[EditReport]:
    rows = [EditResult.of_entry(entry, report.statuses[entry.id]).model_dump() for entry in report.entries]
    return Table(tuple(rows), report)


def _path(given: StrPath | None) -> Path | None:
    return None if given is None else Path(given)


def _checked(kind: type[_Options], **values: Any) -> _Options:
    """Return a record of options whose values are checked: Typer checks those of the command line itself."""
    hints = get_type_hints(kind)
    for name in hints.keys() & values.keys():
        require(name, values[name], hints[name])
    record = kind(**values)
    for each in typed_fields(record):
        _at_least(each.name, getattr(record, each.name), each.metadata["typed"].least)
    return record


def _named(value: Any) -> Any:
    """Return the name of a dtype or device of torch, such as `bfloat16` or `cuda:1`; anything else as it is."""
    return str(value).removeprefix("torch.") if type(value).__module__ == "torch" else value


def _at_least(name: str, value: Any, least: int | None) -> Any:
    if value is not None and least is not None and value < least:
        raise UsageError(f"`{name}` is {value}", f"it must be at least {least}")
    return value


def _flat(given: Iterable[StrPath | Sequence[StrPath]]) -> tuple[Any, ...]:
    """Return arguments, each of which is one or a list of several, as one list."""
    return tuple(item for one in given for item in ((one,) if isinstance(one, str | os.PathLike) else one))


def _several(name: str, given: str | Iterable[str]) -> tuple[str, ...]:
    """Return a list of texts; one text is a list of one."""
    require(name, given, Iterable[str])
    if isinstance(given, Mapping):
        raise UsageError(f"`{name}` is a mapping", f'write a list: {name}=["KEY=VALUE"]')
    several = (given,) if isinstance(given, str) else tuple(given)
    require(name, several, tuple[str, ...])
    return several


def _require_lines(edits: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Return edit lines, where they are not one line or a data frame: both would be read key by key."""
    if isinstance(edits, Mapping):
        raise UsageError("`edits` is one edit line", "give a list of them: `model.edit([line])`")
    if hasattr(edits, "to_dict"):
        raise UsageError("`edits` is a data frame", '`model.edit(frame.to_dict("records"))`')
    return edits


def _paths(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with every path as `Path`, and one setting as a list; users also type text."""
    several = {"settings": _several("settings", options["settings"])} if "settings" in options else {}
    paths = {
        name: Path(value)
        for name, value in options.items()
        if name in ("image_root", "into") and isinstance(value, str)
    }
    return {**options, **paths, **several}
