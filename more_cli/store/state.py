"""The state of an editing run: one safetensors file, `NAME.more`, that holds B and P of every site.

Its metadata has exactly one key, because safetensors writes several in random order. The value is canonical JSON
without times or paths, so the same edits give the same bytes. A is not stored, its seed is, unless the recipe trains A
or computes it from data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from more_cli.checkpoint.headers import TensorEntry
from more_cli.errors import DISTRIBUTION, StateError
from more_cli.files import disk_errors, replacing
from more_cli.recipe.older import without_old_keys
from more_cli.recipe.schema import Recipe
from more_cli.recipe.settings import plain_problem
from more_cli.store import sidecar
from more_cli.store.entry import START
from more_cli.store.sidecar import ZEROS, Sidecar, Stored
from more_cli.text import canonical_json, reason_of, shorten

if TYPE_CHECKING:  # a sidecar's metadata is read without torch
    from torch import Tensor

SCHEMA = 2
"""Version 1 had no checksum."""
METADATA_KEY = "more"


class SiteRecord(BaseModel):
    """Description of one site, beside its tensors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str
    """name of the site in recipes and reports"""
    group: str
    """group of the recipe's `sites` that chose it"""
    modality: Literal["text", "visual"]
    """`text` or `visual`"""
    module: str
    """path of the linear module in memory"""
    disk_key: str
    """name of its weight in the checkpoint's shards"""
    shape: tuple[int, int]
    """d_out and d_in of the weight"""
    rank: int = Field(ge=1)
    """rows of the basis A"""
    scale: float = Field(gt=0)
    """s in y = W x + s B (A x)"""
    seed: int = Field(ge=0, lt=1 << 32)
    """seed of this site's basis"""
    basis_version: int
    """version of the basis generator"""
    basis_fingerprint: list[float]
    """16 numbers that check that A is made again from its seed"""
    ridge: float | None = Field(default=None, gt=0)
    """lambda in force, in units of the squared length of a key; `null` while it still follows the first keys"""
    keys: int = Field(default=0, ge=0, lt=1 << 63)
    """keys that P has absorbed"""
    energy: float = Field(default=0.0, ge=0)
    """sum of squared lengths of the keys that a relative lambda is fixed from"""


class StateMeta(BaseModel):
    """The canonical JSON in the sidecar's header."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = SCHEMA
    """2; version 1 had no checksum"""
    checksum: str = ""
    """SHA-256 of the file with zeros in this place"""
    base: dict[str, Any]
    """fingerprint of the checkpoint: SHA-256 of config, shard headers, tokenizer, templates and of every site's
    tensor"""
    recipe: Recipe
    """the recipe in full"""
    template: str
    """chat template of the prompts"""
    anchors: str | None = None
    """SHA-256 of the anchors"""
    arriving: bool = False
    """whether edits bring anchors, made of their pictures; left out if not"""
    calibration: dict[str, Any] | None = None
    """what `init --calibrate` tried and chose"""
    sites: list[SiteRecord]
    """one object per site, with the keys of a [site](#site)"""
    edits: int = Field(default=0, ge=0)
    """ledger lines that are in this state"""
    digest: str
    """SHA-256 over the content of those lines, in order"""


@dataclass
class State:
    """B (d_out, r) float32 and P (r, r) float64 of every site, by site name, with their description."""

    meta: StateMeta
    B: Mapping[str, Tensor] = field(default_factory=dict)
    P: Mapping[str, Tensor] = field(default_factory=dict)
    A: Mapping[str, Tensor] = field(default_factory=dict)
    """(r, d_in) float32; only where the recipe stores it."""

    @property
    def parameters(self) -> int:
        """Number of values in B, P and a stored A together."""
        stored = self.meta.recipe.stores_basis
        return sum(s.rank * (s.shape[0] + s.rank + s.shape[1] * stored) for s in self.meta.sites)

    def written(self, name: str) -> bool:
        """Return whether B of a site is not zero."""
        return self.B.any(name) if isinstance(self.B, Stored) else bool(self.B[name].any())


def unedited(meta: StateMeta) -> State:
    """Return the state before the first edit and before any anchor's key."""
    sites = [unedited_site(record, meta.recipe) for record in meta.sites]
    first = meta.model_copy(update={"sites": sites, "edits": 0, "digest": START})
    return State(first, *empty_tensors(sites, meta.recipe))


def unedited_site(record: SiteRecord, recipe: Recipe, rank: int | None = None) -> SiteRecord:
    """Return the description of a site before its first key; a relative lambda is not fixed yet.

    `rank` is by default the one that a new state has.
    """
    rank = rank or recipe.rank_at(record.shape[1])
    ridge = recipe.constants_of(record.name, record.modality).ridge
    first = record.model_copy(update={"ridge": ridge, "keys": 0, "energy": 0.0, "rank": rank})
    if rank == record.rank:
        return first
    from more_cli.core.basis import drawn_fingerprint

    drawn = drawn_fingerprint(rank, record.shape[1], record.seed, recipe.basis)
    return first.model_copy(update={"basis_fingerprint": drawn})


def empty_tensors(
    records: Sequence[SiteRecord], recipe: Recipe
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return B = 0 (d_out, r), P = P_0 (r, r) and, if the recipe stores it, A (r, d_in) as drawn, by site name."""
    from torch import zeros

    from more_cli.core import basis, recursion

    B = {record.name: zeros(record.shape[0], record.rank) for record in records}
    # A recipe in the paper's form has a fixed lambda; in the code's form P_0 = I does not depend on it.
    P = {record.name: recursion.initial(record.rank, record.ridge or 0.0, recipe.normalisation) for record in records}
    stored = records if recipe.stores_basis else ()
    drawn = {r.name: basis.draw_basis(r.rank, r.shape[1], r.seed, recipe.basis) for r in stored}
    return B, P, {name: A.contiguous() for name, A in drawn.items()}  # as they are stored


def state_bytes(state: State) -> bytes:
    """Return the bytes of the sidecar."""
    parts = _parts(state)
    assert isinstance(parts[0], bytes)
    return b"".join([sidecar.with_checksum(parts[0], sidecar.sha256_of(parts)), *parts[1:]])


def save_state(path: Path, state: State, *, durable: bool = True) -> None:
    """Replace the sidecar by `state`; a reader sees either the old file or the new one.

    One that need not be `durable` costs less time: after a power cut it can be damaged, as its checksum then says.

    Raises:
        StateError: the folder is not writable.
        ResourceError: the disk is full.
    """
    parts = _parts(state)
    with disk_errors(path), replacing(path, durable=durable) as scratch:
        sidecar.write(scratch, parts)


def _parts(state: State) -> list[bytes | memoryview]:
    """Return the header of the sidecar, without its checksum, and its tensors."""
    meta = state.meta.model_copy(update={"schema_version": SCHEMA, "checksum": ZEROS})
    tensors = {f"{name}.{kind}": value for kind in "BPA" for name, value in getattr(state, kind).items()}
    unused = set() if meta.arriving else {"arriving"}  # so states from before this key keep their bytes
    values = meta.model_dump(mode="json", by_alias=True, exclude=unused)
    return sidecar.encoded({METADATA_KEY: canonical_json(values)}, tensors)


def load_meta(path: Path) -> StateMeta:
    """Read a sidecar's metadata, without its tensors.

    Raises:
        StateError: as `load_state`.
    """
    _require_file(path)
    with _reported_as_damage(path):
        return _read_meta(path, Sidecar(path).metadata)


def load_state(path: Path) -> State:
    """Read a sidecar and check its schema, shapes, types, checksum and numbers.

    Raises:
        StateError: no such file, not a sidecar, newer schema, or damaged.
    """
    stored = open_state(path)
    return State(stored.meta, dict(stored.B), dict(stored.P), dict(stored.A))


def open_state(path: Path) -> State:
    """As `load_state`, but a tensor is read, and its numbers are checked, when it is asked for, every time.

    Raises:
        StateError: as `load_state`; also when a tensor is asked for.
    """
    _require_file(path)
    with _reported_as_damage(path):
        file = Sidecar(path)
        meta = _read_meta(path, file.metadata)
        _check_tensors(path, meta, file.entries)
        if (meta.schema_version > 1 or meta.checksum) and not file.matches(meta.checksum):
            raise StateError(f"`{path}` is damaged: it does not match its checksum", RESTORE)
    entries = {entry.key: entry for entry in file.entries}

    def stored(kind: str) -> Stored:
        found = {site.name: entries[f"{site.name}.{kind}"] for site in meta.sites if f"{site.name}.{kind}" in entries}
        return Stored(file, found, partial(_reported_as_damage, path))

    return State(meta, stored("B"), stored("P"), stored("A"))


RESTORE = (
    "move it away and run `more init MODEL` with the options of the first time (--recipe, --set, --anchors, "
    "--calibrate), or `more edit` if that made it, or copy the newest file of its `.d/snapshots` there: "
    "the next command replays the ledger"
)
"""Hint for a state that is damaged: the ledger beside it holds every edit."""


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise StateError(f"no state at `{path}`", "`more edit MODEL EDITS` makes one; --state names another")
    if path.suffix != ".more" and not _has_header(path):
        raise StateError(f"`{path}` is not a state", "name a `.more` file")


def _has_header(path: Path) -> bool:
    """Return whether a file begins as a safetensors file does: the length of a header, and its JSON."""
    with disk_errors(path), path.open("rb") as file:
        return file.read(9)[8:] == b"{"


@contextmanager
def _reported_as_damage(path: Path) -> Iterator[None]:
    """Turn every error of reading a broken sidecar into one that says it is damaged."""
    try:
        yield
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"`{path}` is damaged: {reason_of(error)}", RESTORE) from None


def _check_tensors(path: Path, meta: StateMeta, entries: Sequence[TensorEntry]) -> None:
    wanted = {f"{site.name}.B": ("F32", (site.shape[0], site.rank)) for site in meta.sites}
    wanted |= {f"{site.name}.P": ("F64", (site.rank, site.rank)) for site in meta.sites}
    if meta.recipe.stores_basis:
        wanted |= {f"{site.name}.A": ("F32", (site.rank, site.shape[1])) for site in meta.sites}
    stored = {entry.key: (entry.dtype, entry.shape) for entry in entries}
    for name, (dtype, shape) in wanted.items():
        if stored.pop(name, None) != (dtype, shape):
            raise StateError(f"`{path}` is damaged: `{name}` is not {shape} {dtype}", RESTORE)
    if stored:
        raise StateError(f"`{path}` is damaged: unknown tensor `{next(iter(stored))}`", RESTORE)


def _read_meta(path: Path, metadata: Any) -> StateMeta:
    try:
        values = json.loads(metadata[METADATA_KEY])
        version = values["schema_version"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise StateError(f"`{path}` is not a state of `more`", "name the file that `more init` wrote") from None
    if isinstance(version, int) and version > SCHEMA:
        raise StateError(
            f"`{path}` has schema {version}, this version of `more` reads up to {SCHEMA}", f"upgrade {DISTRIBUTION}"
        )
    if isinstance(recipe := values.get("recipe"), dict):
        values["recipe"] = without_old_keys(recipe)
    try:
        return StateMeta.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden" and first["loc"][0] == "recipe":
            value = shorten(str(first["input"]))
            what = f"`{path}` has `{where}` = `{value}`, a key that this version of `more` does not have"
            raise StateError(what, f"use the version of {DISTRIBUTION} that made it") from None
        raise StateError(f"`{path}` is damaged: {where}: {plain_problem(first)}", RESTORE) from None
