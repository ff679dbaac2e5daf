"""What the shell offers for a word that is being typed: names, keys and ids.

It runs while somebody types, so it loads no torch, prints nothing and never fails: where something is missing or
broken, it offers less. Where it offers nothing, the shell offers files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import typer

TAIL = 4 << 20
"""Bytes at the end of a ledger that ids are taken from: about 3,000 edits."""

Completion = Callable[[typer.Context, str], list[str]]


def _offered(find: Callable[[typer.Context], Iterable[str]]) -> Completion:
    """Return the completion that offers what `find` returns and begins like the typed word."""

    def offer(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            return [name for name in map(str, find(ctx)) if name.startswith(incomplete) and name.isprintable()]
        except Exception:  # a message would end up in the line that is being typed
            return []

    return offer


@_offered
def recipes(_: typer.Context) -> Iterable[str]:
    """Offer the recipes."""
    from more_cli.recipe.files import shipped_recipes

    return shipped_recipes()


@_offered
def suites(_: typer.Context) -> Iterable[str]:
    """Offer the suites."""
    from more_cli.suites.catalog import CATALOG

    return CATALOG


@_offered
def editors(_: typer.Context) -> Iterable[str]:
    """Offer the editors."""
    from more_cli.system.plugins import installed

    return installed("more.editors")


@_offered
def trackers(_: typer.Context) -> Iterable[str]:
    """Offer the trackers."""
    from more_cli.system.plugins import installed

    return installed("more.trackers")


@_offered
def settings(_: typer.Context) -> Iterable[str]:
    """Offer the keys of a recipe."""
    from more_cli.recipe.schema import Recipe
    from more_cli.recipe.settings import keys_of

    return [f"{key}=" for key in keys_of(Recipe)]


@_offered
def edits_ever(ctx: typer.Context) -> Iterable[str]:
    """Offer the ids of all edits in the ledger."""
    return dict.fromkeys(id for kind, ids in _lines(ctx) if kind == "edit" for id in ids)


@_offered
def edits_in_force(ctx: typer.Context) -> Iterable[str]:
    """Offer the ids of the edits that were not reverted."""
    found: dict[str, None] = {}
    for kind, ids in _lines(ctx):
        for id in ids:
            if kind == "edit":
                found[id] = None
            elif kind == "revert":
                found.pop(id, None)
    return [id for id in found if id not in (ctx.params.get("words") or ())]


@_offered
def states(ctx: typer.Context) -> Iterable[str]:
    """Offer the names of the states beside the model that the words before name, or that is the one here."""
    from more_cli.cli.words import names_model
    from more_cli.store.names import states_beside
    from more_cli.store.target import model_here

    model = next((Path(word) for word in ctx.params.get("words") or () if names_model(word)), None)
    return states_beside(model or model_here())


def _lines(ctx: typer.Context) -> Iterable[tuple[str, list[str]]]:
    """Yield kind and ids of the last lines of the ledger that the words before name."""
    from more_cli.cli.words import locate_among

    state = ctx.params.get("state")
    target, _ = locate_among(ctx.params.get("words") or [], Path(state) if state else None, "")
    with open(target.folder / target.ledger_name, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - TAIL))
        lines = file.read().splitlines()[end > TAIL :]
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # damaged: `more verify` says so
            entry = json.loads(line)
            yield entry["kind"], [*entry["ids"]] if entry["kind"] == "revert" else [entry["id"]]
