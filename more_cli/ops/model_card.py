"""A model card's metadata, as the hub reads it: what a checkpoint or an adapter was made from, and its licence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import yaml

Relation = Literal["finetune", "adapter"]
"""How the hub calls what was written: a whole checkpoint, or an adapter of one."""
LIBRARIES: dict[Relation, str] = {"finetune": "transformers", "adapter": "peft"}
TAGS = ("model-editing", "m-ore")
OF_THE_BASE_ALONE = ("model-index", "new_version", "base_model_relation")
"""Scores, successor and origin of the base: they say nothing about what was made from it."""
FOR_AN_ADAPTER = ("license", "license_name", "license_link", "language", "pipeline_tag", "base_model")
"""What an adapter's card takes over from its base's."""
_BLOCK = re.compile(rb"\A---[ \t]*\r?\n(.*?)(?:\r?\n)?^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")
"""Folder of a repository in the hub's cache."""


def titled(card: bytes, relation: Relation, base: str | None) -> bytes:
    """Return the base's card with the metadata of what was made from it; an adapter's has metadata alone.

    `base` is the base's id on the hub; without one the base's own origin stays. Metadata that cannot be read is left as
    it is.
    """
    found = _BLOCK.match(card)
    body = card[found.end() :] if found else card
    known = _parsed(found[1]) if found else {}
    if known is None:
        return card if relation == "finetune" else b""
    if relation == "adapter":
        known, body = {key: known[key] for key in FOR_AN_ADAPTER if key in known}, b""
    kept = {key: value for key, value in known.items() if key not in OF_THE_BASE_ALONE}
    origin = base or kept.get("base_model")
    made = {"base_model": origin, "base_model_relation": relation} if origin else {}
    tags = kept.get("tags")
    values = kept | made | {"library_name": LIBRARIES[relation], "tags": _with_ours(tags)}
    block = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    return b"---\n" + block.encode() + b"---\n" + body


def hub_id(model: Path, config: dict[str, Any]) -> str | None:
    """Return a checkpoint's id on the hub, ORG/NAME: from its folder in the hub's cache, or from its config."""
    for part in model.resolve().parts:
        if found := _CACHED.fullmatch(part):
            return f"{found[1]}/{found[2]}"
    named = config.get("_name_or_path")
    return named if isinstance(named, str) and _HUB_ID.fullmatch(named) else None


def _parsed(block: bytes) -> dict[str, Any] | None:
    try:
        values = yaml.safe_load(block.decode())
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError):
        return None
    return {} if values is None else values if isinstance(values, dict) else None


def _with_ours(tags: object) -> list[Any]:
    kept = list(tags) if isinstance(tags, list) else []
    return kept + [tag for tag in TAGS if tag not in kept]
