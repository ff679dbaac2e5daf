"""How everything that is measured is called: `kind.metric`, in reports, gates and comparisons alike."""

from __future__ import annotations

from typing import Literal, get_args

Kind = Literal["rel", "gen_text", "gen_image", "loc_text", "loc_image"]
"""What a probe asks: the edit itself, the same in other words, on another image, or what should not have moved."""

KINDS: tuple[Kind, ...] = get_args(Kind)
TARGET_METRICS = ("tf_exact", "tf_token_acc", "target_nll", "gen_exact", "gen_stops")
"""Of a probe with an answer it should have."""
LOCALITY_METRICS = ("loc_top1_answer", "loc_expkl_answer", "loc_gen_same")
"""Of a probe that is compared with the untouched base."""


def is_locality(kind: Kind) -> bool:
    """Return whether the base's behaviour is what a probe of this kind should show."""
    return kind.startswith("loc")


def full_names() -> list[str]:
    """Return every name that a report can hold."""
    return [
        f"{kind}.{metric}" for kind in KINDS for metric in (LOCALITY_METRICS if is_locality(kind) else TARGET_METRICS)
    ]


def is_share(name: str) -> bool:
    """Return whether a metric, by its full name, lies between 0 and 1; the others are in nats."""
    return not name.endswith(".target_nll")
