"""A merged checkpoint beside the live state that it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from more_cli.checkpoint.reader import open_checkpoint
from more_cli.evaluation.probes import ProbeScore, probes_of, run_probes
from more_cli.model.runtime import Runtime, load_runtime
from more_cli.ops.session import Session


@dataclass
class Verification:
    """Live state and merged checkpoint side by side."""

    edits: int
    lost: list[str]
    """Edits that the live state has right and the merged checkpoint does not."""
    gained: list[str]
    largest_logit_gap: float
    """Largest absolute difference of a logit at a target position."""


def score_edits(session: Session, runtime: Runtime) -> list[ProbeScore]:
    """Score the edits that stand, without their variants, and keep their logits."""
    edits = [next(probes_of(session.ledger.edit_of(entry))) for entry in session.ledger.standing()]
    return run_probes(runtime, session.editor, edits, generate=False, keep_logits=True)


def verify_merged(session: Session, out: Path, live: Sequence[ProbeScore]) -> Verification:
    """Load the result like anybody would, and compare its verdict on every edit with the live state's."""
    session.unload()
    merged = open_checkpoint(out)
    runtime = load_runtime(merged, session.machine, system=session.state.meta.recipe.system)
    with runtime.attached([]):
        scores = score_edits(session, runtime)
    pairs = list(zip(live, scores, strict=True))
    gaps = [float((a.logits - b.logits).abs().max()) for a, b in pairs if a.logits is not None and b.logits is not None]
    return Verification(
        edits=len(pairs),
        lost=[a.probe.edit for a, b in pairs if a.values["tf_exact"] > b.values["tf_exact"]],
        gained=[a.probe.edit for a, b in pairs if a.values["tf_exact"] < b.values["tf_exact"]],
        largest_logit_gap=max(gaps, default=0.0),
    )
