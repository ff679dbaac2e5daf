"""Names of all metrics: `kind.metric`, in reports, gates and comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["rel", "gen_text", "gen_image", "portability", "loc_text", "loc_image"]
"""What a probe asks: the edit itself, the same in other words or on another image, what follows from it, or what should
not have changed."""
Baseline = Literal["base", "prev"]
"""What locality compares with: the untouched base, or the model just before the edit that a probe belongs to."""
Prefix = Literal["own", "gold"]
"""The answer that locality is measured on: the baseline's own greedy answer, or the suite's gold answer."""

KINDS: tuple[Kind, ...] = get_args(Kind)
FEW = 10
"""The interval of a mean over fewer samples says little: no page shows it."""
WORDS: dict[Kind, str] = {
    "rel": "the edit",
    "gen_text": "other words",
    "gen_image": "other picture",
    "portability": "follows",
    "loc_text": "unrelated",
    "loc_image": "unrelated, picture",
}
"""What a probe asks, in tables that people read."""
HOPS = 4
"""Portability is also reported by hop, `port_1` to `port_4` (VLKEB's); longer chains count in `portability` alone."""


@dataclass(frozen=True)
class Metric:
    """One metric of a probe."""

    name: str
    what: str
    """What the value is, in one line."""
    mask: str
    """What it is measured over."""
    listed: bool = True
    """Whether tables list it unasked; `--json`, gates and presets have every metric."""


_TARGET = "the target's tokens and the end of sequence"
_WORDS = "the target's tokens"
_ANSWER = "the answer's tokens"
_EVERYWHERE = "every position of question, images and answer"
_TEXT = "the greedy answer"

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("tf_exact", "1 if each is the most likely token, given those before it", _TARGET),
        Metric("tf_token_acc", "share that are the most likely token, given those before them", _TARGET),
        Metric(
            "tf_token_acc_noeos", "the same without the end of sequence, as in published code", _WORDS, listed=False
        ),
        Metric("target_nll", "mean negative log-likelihood, nats per token", _TARGET),
        Metric("gen_exact", "1 if it equals the target, both normalised", _TEXT),
        Metric("gen_contains", "1 if it contains the target as whole words, both normalised", _TEXT, listed=False),
        Metric("gen_stops", "1 if it ends before the limit of tokens", _TEXT),
        Metric("loc_top1_answer", "share whose most likely token is the baseline's", _ANSWER),
        Metric(
            "loc_top10_rank_answer",
            "share of the ten most likely tokens that are the baseline's, rank by rank",
            _ANSWER,
            listed=False,
        ),
        Metric("loc_expkl_answer", "mean of exp(-KL(edited || baseline))", _ANSWER),
        Metric("loc_gen_same", "1 if it equals the baseline's", _TEXT),
        Metric("loc_flip", "1 - loc_gen_same", _TEXT, listed=False),
        Metric("loc_top1_all", "as loc_top1_answer", _EVERYWHERE),
        Metric("loc_top10_rank_all", "as loc_top10_rank_answer", _EVERYWHERE),
    )
}
EVERYWHERE_METRICS = ("loc_top1_all", "loc_top10_rank_all")
"""Measured only where `--metrics` asks for them: they need the logits of whole sequences."""
SUCCESS_METRICS = ("tf_exact", "tf_token_acc", "tf_token_acc_noeos", "gen_exact", "gen_contains")
"""Metrics that say how far the target is reached: 0 for every target of an edit that was refused."""
TARGET_METRICS = tuple(name for name in METRICS if not name.startswith("loc_"))
"""Metrics of a probe that has a target."""
LOCALITY_METRICS = tuple(name for name in METRICS if name.startswith("loc_") and name not in EVERYWHERE_METRICS)
"""Metrics of a probe that compares with the baseline."""


@dataclass(frozen=True)
class Yardstick:
    """How locality is measured."""

    baseline: Baseline = "base"
    prefix: Prefix = "own"
    everywhere: bool = False
    """Also at every position of the sequence."""


def is_locality(kind: str) -> bool:
    """Return whether probes of this kind compare with the baseline."""
    return kind.startswith("loc")


def groups(kind: str, hop: int | None = None) -> tuple[str, ...]:
    """Return the groups that a probe counts in: its kind, and its hop if it has one."""
    return (kind, f"port_{hop}") if hop is not None and hop <= HOPS else (kind,)


def all_groups() -> list[str]:
    """Return every group that metrics are reported for, in order."""
    hops = [f"port_{hop}" for hop in range(1, HOPS + 1)]
    return [group for kind in KINDS for group in (kind, *(hops if kind == "portability" else ()))]


def full_names() -> list[str]:
    """Return every `kind.metric` that a report can hold."""
    return [
        f"{group}.{metric}"
        for group in all_groups()
        for metric in (LOCALITY_METRICS + EVERYWHERE_METRICS if is_locality(group) else TARGET_METRICS)
    ]


def metric_of(name: str) -> Metric:
    """Return the metric of a full name."""
    return METRICS[name.partition(".")[2]]


def is_share(name: str) -> bool:
    """Return whether a metric, by its full name, lies between 0 and 1; the others are in nats."""
    return not name.endswith(".target_nll")
