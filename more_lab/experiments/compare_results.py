"""`more compare --paired`: compare two outputs of `eval --json` about the same edits, edit by edit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from more_cli.errors import DataError
from more_cli.inputs.records import opened
from more_cli.recipe.settings import plain_problem
from more_cli.text import counted, shorten
from more_lab.experiments.paired import Difference, compare_edits

SCHEMAS = ("more.eval/1", "more.eval/2")
"""Of a suite, or of a state in older versions; of a state."""
MAX_BYTES = 256 << 20
"""Largest result that is read, in bytes."""
_PLURALS = {"protocol": "protocols", "baseline": "baselines", "prefix": "prefixes of locality"}
_HINT = "write one with: more eval MODEL --json > FILE"


class _Result(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class _Named(_Result):
    schema_: str = Field(alias="schema")


class EditValues(_Result):
    """The values of one edit."""

    id: str
    probes: str
    """Hash of the probes."""
    values: dict[str, list[float | None]]
    """By the metric's full name, one per probe; None if not finite."""


class Reproduce(_Result):
    """What decided the numbers of a run."""

    model_config = ConfigDict(extra="allow")

    base: dict[str, str]
    """Fingerprint of the untouched checkpoint."""

    def rest(self) -> dict[str, Any]:
        """Return everything but the base."""
        return self.model_extra or {}


class Run(_Result):
    """What a comparison needs of an output of `eval --json`."""

    source: str
    protocol: str
    baseline: str
    prefix: str = "own"
    """The answer that locality was measured on."""
    per_edit: list[EditValues]
    reproduce: Reproduce


Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side."""

    first: Path | str
    second: Path | str
    run: Run
    """The first run; the second has the same edits, protocol, baseline and prefix."""
    metrics: dict[str, Difference]
    skipped: dict[str, str]
    """Metrics that could not be compared, and why."""
    differ: list[str]
    """Keys of `reproduce` in which the runs differ."""


def compare_runs(first: Path, second: Path) -> Comparison:
    """Pair two results by edit and compare every metric that both have.

    Raises:
        DataError: not such an output, or the runs differ in edits, probes, protocol, baseline or base.
    """
    return paired(first, read_run(first), second, read_run(second))


def paired(first: Path | str, a: Run, second: Path | str, b: Run) -> Comparison:
    """Pair two runs by edit, by whatever names, and compare every metric that both have.

    Raises:
        DataError: the runs differ in edits, probes, protocol, baseline or base.
    """
    _check_alike(first, a, second, b)
    partners = {edit.id: edit for edit in b.per_edit}
    metrics, skipped = compare_edits([(edit.values, partners[edit.id].values) for edit in a.per_edit])
    one, other = a.reproduce.rest(), b.reproduce.rest()
    differ = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    return Comparison(first, second, a, metrics, skipped, differ)


def read_run(path: Path) -> Run:
    """Read an output of `eval --json`.

    Raises:
        DataError: not such an output.
    """
    with opened(path) as file:
        raw = file.read(MAX_BYTES + 1).removeprefix(b"\xef\xbb\xbf")
    if len(raw) > MAX_BYTES:
        raise DataError(f"`{path}` is larger than {MAX_BYTES >> 20} MiB", _HINT)
    schema = _parsed(path, raw, _Named).schema_
    if schema not in SCHEMAS:
        raise DataError(f"`{path}` has the schema `{shorten(schema)}`, not `{'` or `'.join(SCHEMAS)}`", _HINT)
    run = _parsed(path, raw, Run)
    if len({edit.id for edit in run.per_edit}) < len(run.per_edit):
        raise DataError(f"`{path}` names an edit twice", _HINT)
    return run


def _parsed(path: Path, raw: bytes, model: type[Model]) -> Model:
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
    place = shorten(".".join(str(part) for part in detail["loc"]))
    reason = f"{f'`{place}`: ' if place else ''}{plain_problem(detail)}"
    raise DataError(f"`{path}` is not an output of `more eval --json`: {reason}", _HINT)


def _check_alike(first: Path | str, a: Run, second: Path | str, b: Run) -> None:
    """Refuse runs that did not measure the same thing."""
    for what in ("protocol", "baseline", "prefix"):
        one, other = str(getattr(a, what)), str(getattr(b, what))
        if one != other:
            raise _unlike(first, second, f"different {_PLURALS[what]}, `{shorten(one)}` and `{shorten(other)}`")
    # Only edited tensors are in a fingerprint, so two recipes share a part of it.
    base, also = a.reproduce.base, b.reproduce.base
    if any(base[key] != also[key] for key in base.keys() & also.keys()):
        raise _unlike(first, second, "different bases, so their locality is not comparable")
    asked, others = ({edit.id: edit.probes for edit in run.per_edit} for run in (a, b))
    alone = _only(first, asked.keys() - others) + _only(second, others.keys() - asked)
    if alone:
        raise _unlike(
            first, second, f"different edits (`{shorten(a.source)}`, `{shorten(b.source)}`): {', '.join(alone)}"
        )
    changed = [id for id in asked if asked[id] != others[id]]
    if changed:
        edits = counted(len(changed), "edit")
        raise _unlike(first, second, f"different probes in {edits}, such as `{shorten(changed[0])}`")
    if not asked:
        raise DataError(f"`{first}` and `{second}` contain no edits", _HINT)


def _unlike(first: Path | str, second: Path | str, what: str) -> DataError:
    return DataError(
        f"`{first}` and `{second}` cannot be compared: they have {what}",
        "score both on the same edits, in the same way",
    )


def _only(path: Path | str, ids: Iterable[str]) -> list[str]:
    ordered = sorted(ids)
    return [f"{len(ordered)} only in `{path}`, such as `{shorten(ordered[0])}`"] if ordered else []
