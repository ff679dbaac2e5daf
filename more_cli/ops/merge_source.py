"""The checkpoint that `merge` copies: the edited one, or the full-precision one that it was quantised from.

A quantised checkpoint is not merged into: rounding would lose the edits. So every weight of the full-precision one is
compared first, and must differ by no more than rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from more_cli.checkpoint import compressed
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.reader import Checkpoint
from more_cli.errors import StateError, UsageError
from more_cli.progress import Progress
from more_cli.store.state import SiteRecord
from more_cli.text import quoted, shorten

if TYPE_CHECKING:
    from more_cli.model.keymap import KeyMap


@dataclass(frozen=True)
class Source:
    """The checkpoint that a merge copies and patches."""

    checkpoint: Checkpoint
    keys: Mapping[str, str]
    """Key of each site's weight in this checkpoint, by its key in the edited one."""


def refuse_misuse(edited: Checkpoint, into: Path | None) -> None:
    """Check that `into` is named for a quantised checkpoint, and for no other.

    Raises:
        UsageError: it is missing, or not needed.
    """
    if edited.scheme is not None and into is None:
        what = f"`{edited.path}` is quantised to {edited.scheme}: merged into its weights, edits would be rounded away"
        hint = (
            f"more merge {quoted(edited.path)} -o OUT --into BASE, where BASE is the full-precision checkpoint that it "
            "was made from"
        )
        raise UsageError(what, hint)
    if edited.scheme is None and into is not None:
        raise UsageError(f"`--into {into}`: `{edited.path}` is not quantised", "leave --into out")


def source_of(edited: Checkpoint, sites: Sequence[SiteRecord], into: Path | None, progress: Progress) -> Source:
    """Return what a merge patches: the edited checkpoint itself, or the one that it was quantised from.

    Raises:
        UsageError: `into` is quantised too.
        StateError: the quantised checkpoint was not made from `into`.
    """
    if into is None:
        return Source(edited, {site.disk_key: site.disk_key for site in sites})
    full = open_checkpoint(into)
    if full.scheme is not None:
        what = f"`--into {into}` is quantised to {full.scheme} itself"
        raise UsageError(what, "name the full-precision checkpoint that the model was made from")
    pairs = _same_weights(edited, full, progress)
    if lacking := next((site.disk_key for site in sites if site.disk_key not in pairs), None):
        raise _not_made_from(edited, full, f"it has nothing for `{shorten(lacking)}`")
    return Source(full, {site.disk_key: pairs[site.disk_key] for site in sites})


def _same_weights(packed: Checkpoint, full: Checkpoint, progress: Progress) -> dict[str, str]:
    """Return each tensor's key in the full-precision checkpoint, once all of them were compared."""
    from more_cli.model.keymap import key_map, meta_model

    ours, theirs = meta_model(packed), meta_model(full)
    other = _another_model(
        {name: tuple(weight.shape) for name, weight in ours.state_dict().items()},
        {name: tuple(weight.shape) for name, weight in theirs.state_dict().items()},
    )
    if other:
        raise _not_made_from(packed, full, other)
    pairs = dict[str, str]()
    for name, key, twin in _twins(key_map(ours, packed), key_map(theirs, full)):
        if twin is None:
            raise _not_made_from(packed, full, f"it has no `{shorten(name)}`")
        pairs[key] = twin
    for number, (key, twin) in enumerate(pairs.items()):
        progress(number, len(pairs), "comparing with the full-precision weights")
        if flaw := _flaw(packed, key, full, twin):
            raise _not_made_from(packed, full, flaw)
    return pairs


def _another_model(ours: Mapping[str, tuple[int, ...]], theirs: Mapping[str, tuple[int, ...]]) -> str:
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            return f"`{shorten(name)}` is of shape {theirs.get(name)}, not {ours.get(name)}"
    return ""


def _twins(ours: KeyMap, theirs: KeyMap) -> Iterator[tuple[str, str, str | None]]:
    """Yield each parameter with its key in both checkpoints; None where the second has none."""
    for name, key in ours.disk.items():
        yield name, key, theirs.disk.get(name)
    for name, keys in ours.converted.items():
        others: tuple[str | None, ...] = theirs.converted.get(name, ())
        for key, twin in zip(keys, others if len(others) == len(keys) else (None,) * len(keys), strict=True):
            yield name, key, twin


def _flaw(packed: Checkpoint, key: str, full: Checkpoint, twin: str) -> str:
    """Return how a tensor differs by more than rounding; empty if it does not."""
    import torch

    from more_cli.checkpoint.quantised import misfit

    theirs = full.read_tensor(full.tensors[twin])
    if key in packed.packed:
        times = misfit(packed, packed.packed[key], theirs)
        return "" if times <= 1 else f"`{shorten(key)}` is {times:.3g} times as far from it as {packed.scheme} rounds"
    ours = packed.read_tensor(packed.tensors[key])
    # One of them may have been rounded to the dtype of the other.
    equal = torch.equal(theirs.to(ours.dtype), ours) or torch.equal(ours.to(theirs.dtype), theirs)
    return "" if equal else f"`{shorten(key)}` differs, which is not quantised"


def _not_made_from(packed: Checkpoint, full: Checkpoint, why: str) -> StateError:
    what = f"`{packed.path}` was not made from `{full.path}`: {why}"
    hint = "name the checkpoint that was quantised, unchanged"
    if packed.scheme in compressed.SCHEMES:
        hint += "; if its weights were adjusted for it (GPTQ, AWQ, SmoothQuant), none fits: use `more export`"
    return StateError(what, hint)
