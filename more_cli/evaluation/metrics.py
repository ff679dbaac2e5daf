"""Metrics by name, each one value per probe, and the intervals they are reported with.

tf_*  teacher forcing: the logits that predict the target, given the target before them.
gen_* greedy generation, compared after `normalise`.
loc_* the edited model compared with a baseline, on the same answer.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from more_cli.evaluation.names import FEW
from more_cli.model.scored import Scored

_ARTICLES = re.compile(r"\b(a|an|the)\b(?=\s+\S)")
"""Articles that stand before a word: the last word of `vitamin A` is none."""
_FINAL = ".!?,;:。、؟،؛।"
"""Punctuation that does not count at the end of an answer, in its narrow forms: NFKC leaves no wide ones."""
RANKS = 10
"""Most likely tokens that MMEdit compares, rank by rank: a swap of two of them counts twice."""
RESAMPLES = 1000
"""Resamples of a bootstrap interval."""
TOO_FEW = f"under {FEW} samples"
"""What stands for an interval that says little."""
_IN_WORD = r"[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
"""A letter or digit of a script that puts spaces between words."""
SEED = 0
"""Seed of the resampling: the same values always have the same interval."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int
    interval: str
    """`wilson` for proportions of yes/no values if those of each edit agree, `bootstrap` otherwise."""

    @property
    def few(self) -> bool:
        """Whether it is of so few samples that its interval says little."""
        return self.n < FEW

    def between(self, spec: str = ".3f") -> str:
        """Return the interval as tables show it."""
        return TOO_FEW if self.few else f"{self.low:{spec}} to {self.high:{spec}}"


def normalise(text: str) -> str:
    """Return text as answers are compared: NFKC, case-folded, without articles, extra spaces or a final stop.

    Of an answer that is only punctuation all counts: `?` is neither `!` nor no answer.
    """
    folded = unicodedata.normalize("NFKC", text).casefold().strip()
    return " ".join(_ARTICLES.sub(" ", folded.rstrip(_FINAL) or folded).split())


def of_targets(scored: Scored) -> dict[str, list[float]]:
    """Return every metric of targets under teacher forcing, per probe, by name."""
    return {
        "tf_exact": tf_exact(scored),
        "tf_token_acc": tf_token_acc(scored),
        "tf_token_acc_noeos": tf_token_acc_noeos(scored),
        "target_nll": target_nll(scored),
    }


def of_generated(answer: str, target: str, *, stops: bool) -> dict[str, float]:
    """Return every metric of one greedy answer by name; `stops`: it ended before the limit of tokens."""
    return {
        "gen_exact": float(normalise(answer) == normalise(target)),
        "gen_contains": gen_contains(answer, target),
        "gen_stops": float(stops),
    }


def of_answers(edited: Scored, baseline: Scored) -> dict[str, list[float]]:
    """Return every metric of locality on an answer's positions, per probe, by name."""
    return {
        "loc_top1_answer": loc_top1_answer(edited, baseline),
        "loc_top10_rank_answer": loc_top10_rank_answer(edited, baseline),
        "loc_expkl_answer": loc_expkl_answer(edited, baseline),
    }


def of_texts(edited: str, baseline: str) -> dict[str, float]:
    """Return every metric of locality on greedy answers by name."""
    same = float(edited == baseline)
    return {"loc_gen_same": same, "loc_flip": 1.0 - same}


def of_everywhere(edited: Tensor, baseline: Tensor) -> dict[str, float]:
    """Return every metric of locality over a whole sequence by name, of both models' `top_tokens`, (T, ranks)."""
    agree = (edited == baseline).double()
    return {"loc_top1_all": float(agree[:, 0].mean()), "loc_top10_rank_all": float(agree.mean())}


def tf_exact(scored: Scored) -> list[float]:
    """Per probe 1 if every target token is the most likely one, the end of sequence included."""
    return [float(value) for value in scored.all_right()]


def tf_token_acc(scored: Scored) -> list[float]:
    """Per probe the share of target tokens that are the most likely one."""
    return [float(value) for value in scored.right().sum(dim=1) / scored.mask.sum(dim=1)]


def tf_token_acc_noeos(scored: Scored) -> list[float]:
    """Per probe the share of target tokens, without the end of sequence, that are the most likely one.

    Published code puts no end of sequence into its labels (EasyEdit, LiveEdit, ScopeEdit).
    """
    return tf_token_acc(Scored(scored.logits[:, :-1], scored.targets[:, :-1], scored.mask[:, :-1]))


def target_nll(scored: Scored) -> list[float]:
    """Per probe the mean negative log-likelihood of the target, in nats per token."""
    return [float(value) for value in scored.nll()]


def loc_top1_answer(edited: Scored, base: Scored) -> list[float]:
    """Per probe the share of answer positions at which both models have the same most likely token."""
    same = (edited.predicted() == base.predicted()) & base.mask
    return [float(value) for value in same.sum(dim=1) / base.mask.sum(dim=1)]


def gen_contains(answer: str, target: str) -> float:
    """Return 1 if an answer contains the target as whole words, both normalised.

    Scripts without spaces, such as Chinese and Thai, do not show where words end: their letters may stand beside it.
    """
    return float(bool(re.search(rf"(?<!{_IN_WORD}){re.escape(normalise(target))}(?!{_IN_WORD})", normalise(answer))))


def top_tokens(logits: Tensor) -> Tensor:
    """Return the ids of the `RANKS` most likely tokens, the most likely first, (..., ranks)."""
    return logits.topk(min(RANKS, logits.shape[-1]), dim=-1).indices


def loc_top10_rank_answer(edited: Scored, base: Scored) -> list[float]:
    """Per probe the share of ranks, over answer positions, at which both lists of top tokens have the same one."""
    agree = (top_tokens(edited.logits) == top_tokens(base.logits)).double().mean(dim=-1)
    return [float(value) for value in masked_mean(agree, base.mask)]


def loc_expkl_answer(edited: Scored, base: Scored) -> list[float]:
    """Per probe the mean over answer positions of exp(-KL(edited || base)) (paper, app. "Locality")."""
    return [float(value) for value in masked_mean(torch.exp(-_kl(edited, base)), base.mask)]


def _kl(edited: Scored, base: Scored) -> Tensor:
    """Return KL(edited || base) per answer position, (N, K), in nats."""
    after, before = edited.log_probabilities(), base.log_probabilities()
    return (after.exp() * (after - before)).sum(dim=-1).clamp_min(0.0)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of (N, K) values over the positions of the mask, (N,)."""
    return (values * mask).sum(dim=1) / mask.sum(dim=1)


def estimate(values: Sequence[float], edits: Sequence[Hashable] | None = None) -> Estimate:
    """Return the mean of values in [0, 1] or nats with its 95 % interval over edits; `values` must not be empty.

    `edits` says of which edit each value is: probes of one edit hold or fail together, so edits are resampled, not
    probes. Without it each value is of another edit.
    """
    mean = math.fsum(values) / len(values)
    together: dict[Hashable, list[float]] = {}
    for edit, value in zip(range(len(values)) if edits is None else edits, values, strict=True):
        together.setdefault(edit, []).append(value)
    if all(set(found) in ({0.0}, {1.0}) for found in together.values()):
        return Estimate(mean, *_wilson(mean, len(together)), len(values), "wilson")
    return Estimate(mean, *bootstrap(list(together.values())), len(values), "bootstrap")


def bootstrap(values: Sequence[float] | Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean over resamples of `values`, or of groups of values.

    There must be at least one.
    """
    groups = [value if isinstance(value, Sequence) else (value,) for value in values]
    draws = np.random.default_rng(SEED).integers(0, len(groups), (RESAMPLES, len(groups)))
    sums, sizes = np.array([math.fsum(group) for group in groups]), np.array([len(group) for group in groups])
    low, high = np.percentile(sums[draws].sum(axis=1) / sizes[draws].sum(axis=1), [2.5, 97.5])
    return float(low), float(high)


def change(values: Sequence[float]) -> Estimate:
    """Return the mean of paired differences, in [-1, 1], with its 95 % interval; `values` must not be empty."""
    return Estimate(math.fsum(values) / len(values), *bootstrap(values), len(values), "bootstrap")


def _wilson(p: float, n: int) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion (Wilson 1927)."""
    z = 1.959964  # of 95 %
    centre = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
