"""How everything that is measured is called: `kind.metric`, in reports, gates and comparisons alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["rel", "gen_text", "gen_image", "portability", "loc_text", "loc_image"]
"""What a probe asks: the edit itself, the same in other words, on another image, what follows from it, or what should
not have moved."""
Baseline = Literal["base", "prev"]
"""What locality is held against: the untouched base, or the model just before the edit that a probe belongs to."""
Prefix = Literal["own", "gold"]
"""On which answer locality is measured: what the baseline says itself, or what the suite says it should."""

KINDS: tuple[Kind, ...] = get_args(Kind)
HOPS = 4
"""Portability is reported by hop too, as `port_1` to `port_4` (VLKEB's); further ones count in `portability` alone."""


@dataclass(frozen=True)
class Metric:
    """What one value of a probe is."""

    name: str
    what: str
    """One line."""
    mask: str
    """What of a probe it is over."""
    told: bool = True
    """Whether people see it where they did not ask for it; `--json`, gates and presets have every metric."""


_TARGET = "the target's tokens and the end of sequence"
_WORDS = "the target's tokens"
_ANSWER = "the answer's tokens"
_EVERYWHERE = "every position of question, images and answer"
_TEXT = "the greedy answer"

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("tf_exact", "1 if each is the most likely one, given the target before it", _TARGET),
        Metric("tf_token_acc", "how many of them are the most likely one, given the target before them", _TARGET),
        Metric("tf_token_acc_noeos", "the same, as published code counts", _WORDS, told=False),
        Metric("target_nll", "mean negative log-likelihood, nats per token", _TARGET),
        Metric("gen_exact", "1 if it is the target, both normalised", _TEXT),
        Metric("gen_contains", "1 if it has the target in it as whole words, both normalised", _TEXT, told=False),
        Metric("gen_stops", "1 if it ends by itself", _TEXT),
        Metric("loc_top1_answer", "how often the most likely token is the baseline's", _ANSWER),
        Metric("loc_top10_rank_answer", "how many of the ten most likely are, rank by rank", _ANSWER, told=False),
        Metric("loc_expkl_answer", "mean of exp(-KL(edited || baseline))", _ANSWER),
        Metric("loc_gen_same", "1 if it is the baseline's", _TEXT),
        Metric("loc_flip", "1 - loc_gen_same", _TEXT, told=False),
        Metric("loc_top1_all", "as loc_top1_answer", _EVERYWHERE),
        Metric("loc_top10_rank_all", "as loc_top10_rank_answer", _EVERYWHERE),
    )
}
EVERYWHERE_METRICS = ("loc_top1_all", "loc_top10_rank_all")
"""Measured where `--metrics` asks for them: they take the logits of whole sequences."""
TARGET_METRICS = tuple(name for name in METRICS if not name.startswith("loc_"))
"""Of a probe with an answer it should have."""
LOCALITY_METRICS = tuple(name for name in METRICS if name.startswith("loc_") and name not in EVERYWHERE_METRICS)
"""Of a probe that is compared with the baseline."""


@dataclass(frozen=True)
class Yardstick:
    """How locality is measured."""

    baseline: Baseline = "base"
    prefix: Prefix = "own"
    everywhere: bool = False
    """Also at every position of the sequence."""


def is_locality(kind: str) -> bool:
    """Return whether the baseline's behaviour is what a probe of this kind should show."""
    return kind.startswith("loc")


def groups(kind: str, hop: int | None = None) -> tuple[str, ...]:
    """Return what a probe counts in: its kind, and its hop if it has one."""
    return (kind, f"port_{hop}") if hop is not None and hop <= HOPS else (kind,)


def all_groups() -> list[str]:
    """Return everything that metrics are reported of, in order."""
    hops = [f"port_{hop}" for hop in range(1, HOPS + 1)]
    return [group for kind in KINDS for group in (kind, *(hops if kind == "portability" else ()))]


def full_names() -> list[str]:
    """Return every name that a report can hold."""
    return [
        f"{group}.{metric}"
        for group in all_groups()
        for metric in (LOCALITY_METRICS + EVERYWHERE_METRICS if is_locality(group) else TARGET_METRICS)
    ]


def metric_of(name: str) -> Metric:
    """Return what a full name measures."""
    return METRICS[name.partition(".")[2]]


def is_share(name: str) -> bool:
    """Return whether a metric, by its full name, lies between 0 and 1; the others are in nats."""
    return not name.endswith(".target_nll")
