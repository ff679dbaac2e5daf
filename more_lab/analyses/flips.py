"""Which answers to unrelated questions change: stable and flipped locality probes (paper, Table "locality_flip").

Where the paper is silent: a probe is flipped if the greedy answer after the last edit differs from the base's; the
margin is that of logits at the first token of the answer; the gold shift is the change of the mean probability of the
reference answer's tokens; the image cosine is that of the model's own mean image features, centred over the run's
images.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from more_cli.evaluation.metrics import RESAMPLES, SEED, estimate
from more_cli.evaluation.names import is_locality
from more_lab.analyses.figures import Floats
from more_lab.analyses.kept import KeptRun, NotKept
from more_lab.analyses.result import Cell, Result, Scalar
from more_lab.figures import PALETTE

KINDS = {"loc_text": "text", "loc_image": "multimodal"}
WHAT = ("margin before", "gold shift", "prompt token F1", "image cosine")


@dataclass(frozen=True)
class _Flip:
    edit: int
    kind: str
    flipped: bool
    facts: tuple[float, ...]
    """As in `WHAT`; NaN where unknown."""


def flips(runs: Sequence[KeptRun]) -> Result:
    """Return what stable and flipped locality probes have in common, with p-values of their differences."""
    found = {run.label: flips_of(run) for run in runs}
    rows: list[Sequence[Cell]] = []
    scalars = []
    for label, probes in found.items():
        flipped = estimate([float(probe.flipped) for probe in probes], [probe.edit for probe in probes])
        scalars.append(Scalar.of(label, "flipped", flipped))
        for kind, name in KINDS.items():
            groups = [[p.facts for p in probes if p.kind == kind and p.flipped == flipped] for flipped in (False, True)]
            for place, what in enumerate(WHAT):
                stable, moved = (_known([facts[place] for facts in group]) for group in groups)
                p = permutation_p(stable, moved)
                rows.append((label, name, what, len(stable), _mean(stable), len(moved), _mean(moved), p))

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(WHAT))
        ticks: list[str] = [f"{name}\n{state}" for name in KINDS.values() for state in ("stable", "flipped")]
        for place, (axes, what) in enumerate(zip(panels, WHAT, strict=True)):
            for number, (kind, flipped) in enumerate(product(KINDS, (False, True))):
                chosen = [p for probes in found.values() for p in probes if p.kind == kind and p.flipped == flipped]
                values = _known([probe.facts[place] for probe in chosen])
                spread = np.random.default_rng(SEED).uniform(-0.2, 0.2, len(values))
                axes.plot(number + spread, values, ".", color=PALETTE[1] if flipped else PALETTE[0], alpha=0.5)
                if values:
                    axes.hlines(_mean(values), number - 0.3, number + 0.3, color="black", linewidth=1.5)
            axes.set_xticks(range(len(ticks)), ticks, rotation=90)
            axes.set(title=what, xlim=(-0.6, len(ticks) - 0.4))

    columns = ("run", "probes", "what", "stable", "mean of stable", "flipped", "mean of flipped", "p")
    note = "Dots are probes of all runs, bars their means; p is that of a permutation test of the means."
    return Result(columns, rows, scalars, draw, size=(8.5, 3.8), note=note)


def flips_of(run: KeptRun) -> list[_Flip]:
    """Return what is known of every locality probe after the last edit."""
    before, after = run.states(0), run.states(len(run))
    scores = [score for i in range(1, len(run) + 1) for score in run.cells.get((len(run), i), ())]
    local = [score for score in scores if is_locality(score["kind"])]
    if len(local) != len(run.record.probes):
        raise NotKept(f"`{run.folder}` was not scored after its last edit", "run it with --protocol final")
    shifts = (after["gold"] - before["gold"]).tolist()
    edits, probes = before["edit_image"].double().numpy(), before["probe_image"].double().numpy()
    cosines = [math.nan] * len(probes)
    if edits.shape[1] == probes.shape[1] and np.isfinite(np.concatenate([edits, probes])).any():
        centre = np.nanmean(np.concatenate([edits, probes]), axis=0)
        cosines = [
            cosine(edits[probe.edit - 1] - centre, image - centre)
            for probe, image in zip(run.record.probes, probes, strict=True)
        ]
    return [
        _Flip(
            probe.edit,
            probe.kind,
            score["values"]["loc_flip"] == 1.0,
            (margin, shifted, token_f1(run.record.edits[probe.edit - 1].question, probe.question), near),
        )
        for probe, score, margin, shifted, near in zip(
            run.record.probes, local, before["margin"].tolist(), shifts, cosines, strict=True
        )
    ]


def token_f1(one: str, other: str) -> float:
    """Return the F1 of the words that two texts share, lower-cased and with repetitions, in [0, 1]."""
    first, second = (Counter(re.findall(r"\w+", text.lower())) for text in (one, other))
    shared = (first & second).total()
    return 2 * shared / (first.total() + second.total()) if shared else 0.0


def cosine(one: Floats, other: Floats) -> float:
    """Return the cosine of two vectors; NaN if one is unknown or zero."""
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if norms else math.nan


def permutation_p(stable: Sequence[float], flipped: Sequence[float]) -> float:
    """Return the two-sided p-value of a difference of means, over random relabellings; NaN without both groups."""
    if not stable or not flipped:
        return math.nan
    values, n = np.array([*stable, *flipped]), len(stable)
    draws = np.random.default_rng(SEED).permuted(np.tile(values, (RESAMPLES, 1)), axis=1)
    observed = abs(values[:n].mean() - values[n:].mean())
    as_far = np.abs(draws[:, :n].mean(axis=1) - draws[:, n:].mean(axis=1)) >= observed - 1e-12
    return float((as_far.sum() + 1) / (RESAMPLES + 1))


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
