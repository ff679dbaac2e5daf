"""`more export`: the edits as a PEFT LoRA adapter, or as one file of weight deltas.

An adapter holds A and B of every written site under the names PEFT itself saves, so `PeftModel` and transformers
load it without `more`. Of the base only the headers are read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn.functional import pad

from more_cli.checkpoint import compressed
from more_cli.checkpoint.headers import header, in_order
from more_cli.editors.more.sites import basis_of
from more_cli.errors import StateError, UsageError
from more_cli.files import (
    check_free_file,
    check_name,
    disk_errors,
    replacing,
    replacing_directory,
    sha256_file,
    write_new,
)
from more_cli.model.keymap import meta_model
from more_cli.model.machine import Machine
from more_cli.ops.card import PROVENANCE
from more_cli.ops.provenance import of_edits, own_names, provenance, write_provenance
from more_cli.ops.session import Session, open_session
from more_cli.options import ExportOptions
from more_cli.progress import Progress, no_progress
from more_cli.store.entry import FailedEdit, failed_sentence
from more_cli.store.sidecar import memory
from more_cli.store.state import SiteRecord, State
from more_cli.store.target import Target
from more_cli.text import canonical_json

Format = Literal["peft", "delta"]
ADAPTER, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
"""What PEFT puts before a module's path."""


@dataclass
class ExportReport:
    """What `export` wrote."""

    target: Target
    out: Path
    format: Format
    modules: list[str] = field(default_factory=list)
    """Modules in the adapter, or disk keys in the delta, as read back from the result."""
    edits: int = 0
    """Edits in it."""
    asked: int = 0
    """Edits that were asked for."""
    failed: list[FailedEdit] = field(default_factory=list)
    """Those of them that do not stand."""
    replayed: int = 0
    kept: dict[str, float] = field(default_factory=dict)
    """By module, the part of its update that an adapter of another rank keeps, |B' A'| / |B A|."""
    needs_unpacked: bool = False
    """Whether PEFT takes the adapter only beside weights that were unpacked while they were loaded."""


class Update(NamedTuple):
    """The update s B A of one module's weight, B (d_out, rank) and A (rank, d_in)."""

    record: SiteRecord
    rank: int
    """The rank that it is written with."""


def export(
    target: Target,
    out: Path,
    machine: Machine,
    options: ExportOptions | None = None,
    progress: Progress = no_progress,
) -> ExportReport:
    """Write the edits to `out`, which appears whole or not at all.

    With `rank` every module of an adapter has this rank, by truncation.

    Raises:
        StateError: the state does not fit its base or has no edits, or the result does not match the model.
        UsageError: `out` is of the base or the state, or exists and may not be replaced; a rank was given for deltas,
            which have none, or one that no weight can have; or deltas of quantised weights were asked for.
    """
    options = options or ExportOptions()
    format, rank, force = options.format, options.rank, options.force
    if rank is not None and format == "delta":
        raise UsageError("`--rank` is for adapters", "leave --rank out, or drop --format delta")
    target.protect_from(out)
    session = open_session(target, machine, progress)
    if format == "delta" and session.checkpoint.scheme is not None:
        what = f"`{target.model}` is quantised to {session.checkpoint.scheme}: deltas cannot be added to such weights"
        raise UsageError(what, "drop --format delta, or merge them: more merge MODEL -o OUT --into BASE")
    report = ExportReport(target, out, format, replayed=session.behind)
    state = session.catch_up()
    ledger = session.ledger
    report.edits, report.asked, report.failed = len(ledger.standing()), len(ledger.asked()), ledger.failed()
    written = [record for record in state.meta.sites if state.written(record.name)]
    if not written:
        why = f": {failed_sentence(report.failed, report.asked)}" if report.failed else ""
        hint = "`more edit MODEL --retry` tries them again" if report.failed else "apply some with `more edit`"
        raise StateError(f"`{target.sidecar}` has no edits to export{why}", hint)
    if rank is not None and rank > (most := max(min(record.shape) for record in written)):
        raise UsageError(f"`--rank {rank}`: no edited weight has a rank above {most}", f"give one from 1 to {most}")
    if format == "delta":
        report.modules = _export_delta(session, out, written, force)
    else:
        with replacing_directory(out, force, marker=PROVENANCE, own=partial(own_names, relation="adapter")) as scratch:
            updates = [Update(record, rank or record.rank) for record in written]
            model = meta_model(session.checkpoint)
            config = adapter_config(updates, str(target.model), type(model))
            report.kept = _write_adapter(session, scratch, updates, config, truncated=rank is not None)
            report.modules = _matched_modules(model, scratch, updates)
        report.needs_unpacked = session.checkpoint.scheme in compressed.SCHEMES
    return report


def _write_adapter(
    session: Session, folder: Path, updates: Sequence[Update], config: dict[str, Any], *, truncated: bool
) -> dict[str, float]:
    """Write an adapter; return by module the part of its update that truncation kept."""
    kept: dict[str, float] = {}
    with open(folder / ADAPTER, "wb") as file:
        for block in _adapter_bytes(session.state, updates, kept if truncated else None):
            file.write(block)
    write_new(folder / CONFIG, f"{json.dumps(config, indent=2, sort_keys=True)}\n".encode())
    facts = {"modules": str(len(updates))}
    if kept:
        facts["update that truncation kept"] = f"{min(kept.values()):.1%} or more of each"
    files = {name: sha256_file(folder / name) for name in (ADAPTER, CONFIG)}
    write_provenance(session, folder, "adapter", files, facts=facts)
    return kept


def _adapter_bytes(
    state: State, updates: Sequence[Update], kept: dict[str, float] | None
) -> Iterator[bytes | memoryview]:
    """Yield an adapter's safetensors file, one module in memory at a time; `kept` is filled if it is truncated."""
    of_module = {f"{PREFIX}{update.record.module}.lora_": update for update in updates}
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, (record, rank) in of_module.items():
        shapes[f"{name}A.weight"] = "F32", (rank, record.shape[1])
        shapes[f"{name}B.weight"] = "F32", (record.shape[0], rank)
    yield header({"format": "pt"}, shapes)
    for first in in_order(shapes)[::2]:  # A and B of a module follow each other, as their names do
        record, rank = of_module[first.removesuffix("A.weight")]
        B, A = state.B[record.name], basis_of(state, record)
        if kept is not None:
            B, A, kept[record.module] = at_rank(B, A, rank)
        yield memory(A)
        yield memory(B)


def adapter_config(updates: Sequence[Update], base: str, model: type) -> dict[str, Any]:
    """Return PEFT's configuration of an adapter whose modules may differ in rank and scale (alpha = s r)."""
    ranks = {update.record.module: update.rank for update in updates}
    alphas = {update.record.module: _plain(update.record.scale * update.rank) for update in updates}
    rank = Counter(ranks.values()).most_common(1)[0][0]
    alpha = Counter(alphas.values()).most_common(1)[0][0]
    return {
        "peft_type": "LORA",
        "task_type": None,
        "auto_mapping": {"base_model_class": model.__name__, "parent_library": model.__module__},
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "target_modules": sorted(ranks),
        # PEFT reads these keys as regular expressions and takes the first match: full module names are exact.
        "rank_pattern": {module: r for module, r in ranks.items() if r != rank},
        "alpha_pattern": {module: a for module, a in alphas.items() if a != alpha},
    }


def _plain(number: float) -> int | float:
    return int(number) if float(number).is_integer() else number


def _matched_modules(model: torch.nn.Module, folder: Path, updates: Sequence[Update]) -> list[str]:
    """Read the adapter back and match every module: PEFT drops a name that it cannot place, with only a warning."""
    modules = dict(model.named_modules())
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    with safe_open(folder / ADAPTER, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a dict)
            module, _, letter = name.removeprefix(PREFIX).rpartition(".lora_")
            shapes.setdefault(module, {})[letter[0]] = tuple(file.get_slice(name).get_shape())
    for update in updates:
        record, (d_out, d_in) = update.record, update.record.shape
        fits = shapes.get(record.module) == {"A": (update.rank, d_in), "B": (d_out, update.rank)}
        linear = isinstance(modules.get(record.module), torch.nn.Linear)
        if not (fits and linear and record.module in config["target_modules"]):
            raise StateError(f"the adapter does not match `{record.module}` of the model", "report this as a bug")
    if len(shapes) != len(updates):
        raise StateError("the adapter holds modules that were not written", "report this as a bug")
    return sorted(shapes)


def _export_delta(session: Session, out: Path, written: Sequence[SiteRecord], force: bool) -> list[str]:
    check_name(out)
    if out.is_dir():
        raise UsageError(f"`{out}` is a folder", "a delta is one file: name it, such as -o deltas.safetensors")
    check_free_file(out, force)
    if out.exists() and not _is_delta(out):
        raise UsageError(f"`{out}` holds no deltas of `more`, so it is not replaced", "name a new file")
    about = canonical_json(provenance(session) | of_edits(session.ledger))
    with replacing(out) as scratch, disk_errors(out), open(scratch, "wb") as file:
        for block in _delta_bytes(session.state, written, about):
            file.write(block)
    with safe_open(out, framework="pt") as file:
        keys = sorted(file.keys())
    if keys != sorted(record.disk_key for record in written):
        raise StateError(f"`{out}` does not hold what was written", "check the disk, then export again")
    return keys


def _is_delta(path: Path) -> bool:
    """Return whether a file was written by `_export_delta`."""
    try:
        with safe_open(path, framework="pt") as file:
            return "more" in (file.metadata() or {})
    except (OSError, SafetensorError):
        return False


def _delta_bytes(state: State, written: Sequence[SiteRecord], about: str) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file of s B A, float32, under the weights' names on disk, one site in memory at a time."""
    records = {record.disk_key: record for record in written}
    shapes = {key: ("F32", record.shape) for key, record in records.items()}
    yield header({"more": about}, shapes)
    for record in map(records.__getitem__, in_order(shapes)):
        delta = state.B[record.name] @ basis_of(state, record)
        yield memory(delta.mul_(record.scale))


def at_rank(B: Tensor, A: Tensor, rank: int) -> tuple[Tensor, Tensor, float]:
    """Return B' (d_out, rank) and A' (rank, d_in), float32, whose product is closest to B A, and the part they keep.

    Closest in the Frobenius norm is the truncated singular value decomposition (Eckart and Young, 1936). The part is
    |B' A'|_F / |B A|_F, in [0, 1]. A rank above that of B A is filled up with zeros.
    """
    # In float64: small singular values of a product are differences of large numbers. No matrix is d_out by d_in.
    Q_B, R_B = torch.linalg.qr(B.double())
    Q_A, R_A = torch.linalg.qr(A.double().T)
    U, lengths, V = torch.linalg.svd(R_B @ R_A.T)
    kept = lengths[:rank]
    part = float(kept.norm() / lengths.norm().clamp(min=torch.finfo(torch.float64).tiny))
    left, right = Q_B @ (U[:, : len(kept)] * kept), V[: len(kept)] @ Q_A.T
    missing = rank - len(kept)
    return pad(left, (0, missing)).float(), pad(right, (0, 0, 0, missing)).float(), part
