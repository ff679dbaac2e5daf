"""A run that was kept with `--keep`, read again; nothing in its folder is trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator
from torch import Tensor

from more_cli.errors import DataError, UsageError
from more_cli.evaluation.names import Kind, is_locality
from more_cli.model.changes import Change
from more_cli.runner.journal import read_lines
from more_cli.runner.protocols import Cell
from more_cli.runner.report import cells_of
from more_lab.experiments.keep import ANSWERS, RIGHT, STATES, UPDATES, numbered, read_tensors
from more_lab.experiments.record import read_record

Reads = Literal["--keep-updates", "--keep-states", "--keep-answers", "the journal", "the model"]
"""What an analysis reads of a run."""
Pairs = Sequence[Sequence[tuple[str, str]]]
"""By image, each question's expected answer and the one that was given."""
SUCCESS = {"gen_exact", "tf_token_acc"}
"""Metrics of a target that analyses read."""
_STATES = Literal["state", "margin", "gold", "edit_image", "probe_image"]


class NotKept(UsageError):
    """A run lacks what an analysis reads, or its editor has no such thing."""


class _Outcome(BaseModel):
    status: str
    cost: float


class _Score(BaseModel):
    kind: Kind
    hop: int | None
    values: dict[str, float]
    answer: str | None
    base: str

    @model_validator(mode="after")
    def _measured(self) -> Self:
        if missing := {"loc_flip"} - set(self.values) if is_locality(self.kind) else SUCCESS - set(self.values):
            raise ValueError(f"a score lacks {', '.join(sorted(missing))}")
        return self


class _Line(BaseModel):
    t: int = Field(ge=0)
    id: str
    seconds: float = Field(ge=0)
    peak: int = 0
    routing: float = Field(default=0, ge=0)
    outcome: _Outcome
    scores: dict[Annotated[int, Field(ge=1)], list[_Score]]


class _Answers(BaseModel):
    suite: str
    categories: dict[str, Annotated[list[Annotated[list[tuple[str, str]], Field(min_length=1)]], Field(min_length=1)]]

    @property
    def shape(self) -> dict[str, list[int]]:
        """Questions per image, by category."""
        return {name: [len(image) for image in images] for name, images in self.categories.items()}


_LINES = TypeAdapter(list[_Line])


class KeptRun:
    """One kept run."""

    def __init__(self, folder: Path) -> None:
        """Read its record and its journal.

        Raises:
            DataError: the folder holds no run, or a damaged or unfinished one.
        """
        self.folder, self.record = folder, read_record(folder)
        self.label = self.record.editor
        """Its name in figures."""
        self.lines = self._read_lines()

    def __len__(self) -> int:
        """Return its number of edits."""
        return len(self.record.edits)

    @cached_property
    def cells(self) -> dict[Cell, list[dict[str, Any]]]:
        """Scores of edit i after t edits, by (t, i)."""
        return dict(cells_of(self.lines))

    @cached_property
    def updates(self) -> list[dict[str, Change]]:
        """Each edit's change of every weight that it wrote, by module.

        Raises:
            NotKept: it has none.
            DataError: a file is damaged.
        """
        if not (self.folder / UPDATES).is_dir():
            raise NotKept(f"`{self.folder}` keeps no updates", "run it into another folder with --keep-updates")
        shared = read_tensors(self.folder / RIGHT) if (self.folder / RIGHT).exists() else {}
        updates = [self._update(t, shared) for t in range(1, len(self) + 1)]
        shapes: dict[str, tuple[int, int]] = {}
        for t, update in enumerate(updates, 1):
            for module, change in update.items():
                if shapes.setdefault(module, change.shape) != change.shape:
                    path = numbered(self.folder, UPDATES, t)
                    raise DataError(f"`{path}`: `{module}` has another shape than before", "keep the run again")
        if not any(updates):
            raise NotKept(f"editor `{self.label}` wrote no weights", "choose another analysis")
        return updates

    @property
    def marks(self) -> list[int]:
        """Numbers of edits after which states and answers were kept, from 0."""
        return [0, *self.record.schedule.marks]

    def states(self, t: int) -> Mapping[_STATES, Tensor]:
        """Return what was kept of the locality probes after `t` edits, see `keep`.

        Raises:
            NotKept: nothing was.
            DataError: the file is damaged.
        """
        path = numbered(self.folder, STATES, t)
        if not path.exists():
            if path.parent.is_dir():
                raise DataError(f"`{path}` is missing", "keep the run again")
            raise NotKept(f"`{self.folder}` keeps no hidden states", "run it into another folder with --keep-states")
        found = read_tensors(path)
        for name in get_args(_STATES):
            rows = len(self.record.edits if name == "edit_image" else self.record.probes)
            if len(found.get(name, ())) != rows and not (t and name.endswith("_image")):
                raise DataError(f"`{path}` does not have {rows} rows of `{name}`", "keep the run again")
        return found  # type: ignore[return-value]

    def answers(self) -> dict[int, dict[str, Pairs]]:
        """Return the answers to yes/no questions by number of edits and category.

        Raises:
            NotKept: it has none.
            DataError: a file is damaged.
        """
        if not (self.folder / ANSWERS).is_dir():
            hint = "run it into another folder with --keep-answers mme"
            raise NotKept(f"`{self.folder}` keeps no answers to yes/no questions", hint)
        found: dict[int, dict[str, Pairs]] = {}
        shape: dict[str, list[int]] = {}
        for t in self.marks:
            path = numbered(self.folder, ANSWERS, t, ".json")
            try:
                answers = _Answers.model_validate_json(path.read_bytes())
            except (OSError, ValidationError) as error:
                raise DataError(f"`{path}` cannot be read", "keep the run again") from error
            shape = shape or answers.shape
            if answers.shape != shape:
                raise DataError(f"`{path}` answers other questions than the files before it", "keep the run again")
            found[t] = dict(answers.categories)
        return found

    def lacks(self, reads: Reads) -> str:
        """Return why an analysis cannot read the run, in words; empty if it can."""
        try:
            if reads == "--keep-updates":
                _ = self.updates
            elif reads == "--keep-states":
                self.states(0)
            elif reads == "--keep-answers":
                self.answers()
        except NotKept as error:
            return error.message
        return ""

    def _update(self, t: int, shared: Mapping[str, Tensor]) -> dict[str, Change]:
        path = numbered(self.folder, UPDATES, t)
        found, changes = read_tensors(path), dict[str, Change]()
        for name, left in found.items():
            module, _, side = name.rpartition(".")
            if side == "right":
                continue
            right = found.get(f"{module}.right", shared.get(module)) if side == "left" else None
            fits = right is None or (right.dim() == 2 and len(right) == left.shape[-1])
            if left.dim() != 2 or not fits or (right is None) != (side == "delta"):
                raise DataError(f"`{path}`: the factors of `{module}` do not fit", "keep the run again")
            changes[module] = Change(left, right)
        return changes

    def _read_lines(self) -> list[dict[str, Any]]:
        lines = read_lines(self.folder)
        try:
            _LINES.validate_python(lines)
        except ValidationError as error:
            first = error.errors()[0]
            where = f"`{self.folder}`: line {int(first['loc'][0]) + 1} of the journal"
            raise DataError(f"{where}: {first['msg'].lower()}", "keep the run again") from None
        if any(int(i) > len(self) for line in lines for i in line["scores"]):
            raise DataError(f"`{self.folder}`: the journal scores edits that the run does not have", "keep it again")
        stream = lines[: len(self)]
        if [line["t"] for line in stream] != list(range(1, len(self) + 1)):
            done = f"`{self.folder}` has {len(stream)} of {len(self)} edits"
            raise DataError(done, "run the same `more run` again: it continues")
        return lines


def read_runs(folders: Sequence[Path]) -> list[KeptRun]:
    """Read kept runs; those of one editor are told apart by their folders.

    Raises:
        UsageError: one is named twice.
        DataError: a folder holds no run, or a damaged or unfinished one.
    """
    if twice := [folder for number, folder in enumerate(folders) if folder in folders[:number]]:
        raise UsageError(f"`{twice[0]}` is named twice", "give each run once")
    runs = [KeptRun(folder) for folder in folders]
    editors = [run.label for run in runs]
    for told in (lambda run: run.folder.name, lambda run: str(run.folder)):
        names = [run.label for run in runs]
        for run, editor in zip(runs, editors, strict=True):
            if names.count(run.label) > 1:
                run.label = f"{editor} ({told(run)})"
    return runs
