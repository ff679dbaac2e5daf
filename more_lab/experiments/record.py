"""`run.json` of a kept run: what was run on what, so that an analysis needs neither the suite nor its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from more_cli.errors import DataError, UsageError
from more_cli.evaluation.names import Kind
from more_cli.evaluation.probes import probes_of
from more_cli.files import write_whole
from more_cli.inputs.edits import Edit
from more_cli.inputs.images import ImageSource
from more_cli.inputs.turns import Turn
from more_cli.model.batches import Query
from more_cli.runner.protocols import Protocol, Schedule
from more_cli.text import canonical_json, reason_of

RECORD = "run.json"
SCHEMA = "more.run/1"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Picture(_Part):
    """An image by its path and hash."""

    spelled: str
    path: Path | None
    sha256: str

    @classmethod
    def of(cls, image: ImageSource) -> Self:
        """Return where an image lies, as an absolute path."""
        path = None if image.path is None else image.path.resolve()
        return cls(spelled=image.spelled if path else "data", path=path, sha256=image.sha256)


class Asked(_Part):
    """A question: an edit's own, or a locality probe's."""

    edit: int = Field(ge=1)
    """Number of the edit."""
    kind: Kind
    question: str
    answer: str | None
    """The edit's target or, for locality, the suite's gold answer if it has one."""
    images: tuple[Picture, ...] = ()
    turns: tuple[Turn, ...] = Field((), exclude_if=lambda turns: not turns)
    """What was said before the question."""

    @property
    def query(self) -> Query:
        """Return it as the model is asked."""
        images = tuple(ImageSource(image.spelled, image.path, image.sha256) for image in self.images)
        return Query(images, self.question, self.turns)


class Order(_Part):
    """What was scored after which edit."""

    edits: int = Field(ge=1)
    protocols: tuple[Protocol, ...]
    checkpoints: tuple[int, ...] = ()
    lags: tuple[int, ...] = ()


class RunRecord(_Part):
    """Everything about a run that its journal does not say."""

    schema_: Literal["more.run/1"] = Field(alias="schema")
    key: str
    editor: str
    model: Path
    suite: str
    order: Order
    edits: tuple[Asked, ...]
    ids: tuple[str, ...]
    """Ids of the edits."""
    probes: tuple[Asked, ...]
    """Locality probes of all edits, in order."""
    reproduce: dict[str, Any]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        counts = {self.order.edits, len(self.edits), len(self.ids)}
        if len(counts) > 1 or any(probe.edit > self.order.edits for probe in self.probes):
            raise ValueError("the numbers of edits differ")
        return self

    @property
    def schedule(self) -> Schedule:
        """What was scored after which edit."""
        return Schedule(self.order.edits, self.order.protocols, self.order.checkpoints, self.order.lags)


def record_of(
    key: str, editor: str, model: Path, suite: str, schedule: Schedule, edits: Sequence[Edit], facts: Mapping[str, Any]
) -> RunRecord:
    """Return the record of a run that begins; `facts` are what its report calls `reproduce`."""
    return RunRecord(
        schema=SCHEMA,
        key=key,
        editor=editor,
        model=model.resolve(),
        suite=suite,
        order=Order(**{name: getattr(schedule, name) for name in Order.model_fields}),
        edits=tuple(_asked(i, "rel", Query.of(edit), edit.target) for i, edit in enumerate(edits, 1)),
        ids=tuple(edit.id for edit in edits),
        probes=tuple(
            _asked(i, probe.kind, probe.query, probe.gold)
            for i, edit in enumerate(edits, 1)
            for probe in probes_of(edit)
            if probe.is_locality
        ),
        reproduce=dict(facts),
    )


def read_record(folder: Path) -> RunRecord:
    """Read a folder's `run.json`.

    Raises:
        DataError: there is none, or it is no such record.
    """
    path = folder / RECORD
    hint = "keep a run with: more run --suite NAME --keep DIR --keep-updates --keep-states"
    try:
        return RunRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"`{folder}` holds no kept run: there is no `{RECORD}`", hint) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(f"`{path}`: {place}: {first['msg'].lower()}", hint) from None
    except OSError as error:
        raise DataError(f"cannot read `{path}`: {reason_of(error)}", hint) from None


def claim(folder: Path, record: RunRecord) -> None:
    """Write the record of a run into its folder, which must be empty or hold the same run.

    Raises:
        UsageError: the folder holds something else.
        StateError, ResourceError: not writable, or no space.
    """
    hint = "name an empty folder"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"`--keep {folder}` is not a folder", hint)
    if (folder / RECORD).exists():
        if read_record(folder).key != record.key:
            raise UsageError(f"`{folder}` keeps another run: its editor, settings, edits or options differ", hint)
        return
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"`--keep {folder}` is not empty and holds no run", hint)
    values = record.model_dump(mode="json", by_alias=True)
    write_whole(folder / RECORD, f"{canonical_json(values)}\n".encode())


def _asked(number: int, kind: Kind, query: Query, answer: str | None) -> Asked:
    pictures = tuple(map(Picture.of, query.images))
    return Asked(edit=number, kind=kind, question=query.question, answer=answer, images=pictures, turns=query.turns)
