"""The model card of what was made with `more`: the base's metadata, and a section about the corrections."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from more_cli.checkpoint.hub import HUB_ID, Pin, cached_id
from more_cli.errors import DISTRIBUTION
from more_cli.store.entry import failed_sentence
from more_cli.store.target import Target
from more_cli.text import code, counted, span

if TYPE_CHECKING:
    from more_cli.store.ledger import Ledger
    from more_cli.store.state import StateMeta

CARD, PROVENANCE = "README.md", "more.json"
"""Files beside the weights: the card, and what `more_cli.ops.provenance` writes."""
Relation = Literal["finetune", "adapter", "state"]
"""What was written is a whole checkpoint, an adapter of one, or a state: to the hub, that is an adapter too."""
LIBRARIES: dict[Relation, str] = {"finetune": "transformers", "adapter": "peft", "state": DISTRIBUTION}
TAGS = ("model-editing", "m-ore")
OF_THE_BASE_ALONE = ("model-index", "new_version", "base_model_relation")
"""Scores, successor and origin of the base: they say nothing about what was made from it."""
FOR_AN_ADAPTER = ("license", "license_name", "license_link", "language", "pipeline_tag", "base_model")
"""What an adapter's card takes over from its base's."""
_SENTENCE = 4000
"""Most characters of a sentence of the card that names edits."""
_BLOCK = re.compile(rb"\A---[ \t]*\r?\n(.*?)(?:\r?\n)?^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


def state_card(meta: StateMeta, ledger: Ledger, target: Target, pin: Pin | None) -> bytes:
    """Return the model card of a state that is published without its base; `pin` is the base's commit."""
    facts = {"load it": f"beside its base, as {code(target.sidecar.name)}: `more merge`, `more export`, `more eval`"}
    above = titled(b"", "state", pin.repo if pin else None)
    what = "this state, which is used beside its base"
    return above + b"\n" + section(meta, ledger, what, facts, pin or target.model.name, carried=False).encode()


def counts(ledger: Ledger) -> dict[str, int]:
    """Return the number of edits by status."""
    return dict(sorted(Counter(ledger.statuses().values()).items()))


def section(
    meta: StateMeta, ledger: Ledger, what: str, facts: Mapping[str, str], base: Pin | str, *, carried: bool = True
) -> str:
    """Return the card's section; `carried` is whether a `more.json` lies beside it."""
    standing = len(ledger.standing())
    written = f"{counted(standing, 'correction')} {'was' if standing == 1 else 'were'} written into {what} with M-ORE."
    if failed := ledger.failed():
        written += (
            f"\n\n{span(failed_sentence(failed, len(ledger.asked())), _SENTENCE)}; "
            f"`{PROVENANCE if carried else ledger.path.name}` has the reasons."
        )
    rows = {
        "base": f"{code(str(base))}, headers {meta.base['headers'][:16]}",
        "recipe": code(meta.recipe.name),
        "corrections": ", ".join(f"{count} {status}" for status, count in counts(ledger).items()) or "none",
        **facts,
        "ledger head": ledger.head[:16],
    }
    table = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
    text = f"## Corrected with more\n\n{written}\n\n| what | value |\n|---|---|\n{table}"
    if not carried:
        return text
    return (
        f"{text}\n"
        f"`{PROVENANCE}` has the hashes of the base and of what was written, the recipe in full, the ledger's head and "
        "the versions; `more verify` on this folder compares them.\n"
    )


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
    if relation != "finetune":
        known, body = {key: known[key] for key in FOR_AN_ADAPTER if key in known}, b""
    kept = {key: value for key, value in known.items() if key not in OF_THE_BASE_ALONE}
    origin = base or kept.get("base_model")
    made = {"base_model": origin, "base_model_relation": relation.replace("state", "adapter")} if origin else {}
    tags = kept.get("tags")
    tags = tags if isinstance(tags, list) else []
    ours = {"library_name": LIBRARIES[relation], "tags": [*tags, *(tag for tag in TAGS if tag not in tags)]}
    block = yaml.safe_dump(kept | made | ours, sort_keys=False, allow_unicode=True)
    return b"---\n" + block.encode() + b"---\n" + body


def hub_id(model: Path, config: dict[str, Any]) -> str | None:
    """Return a checkpoint's id on the hub, ORG/NAME: from its folder in the hub's cache, or from its config."""
    named = config.get("_name_or_path")
    return cached_id(model) or (named if isinstance(named, str) and HUB_ID.fullmatch(named) else None)


def _parsed(block: bytes) -> dict[str, Any] | None:
    try:
        values = yaml.safe_load(block.decode())
        yaml.safe_dump(values)  # a number of too many digits can be read, but not written
    except Exception:  # of a value that does not fit its tag, PyYAML raises whatever its code comes upon
        return None
    return {} if values is None else values if isinstance(values, dict) else None
