"""M-Loc of the families' default rows, split by whether the base was sure of its own answer.

python tests/bench/sureness.py
"""

from __future__ import annotations

import numpy as np
import torch

from more_cli.evaluation.probes import ANSWER_TOKENS, probes_of
from retention import results, stream
from streams import FAMILIES, runtime

SURE = 0.95
"""Probability of the base's least sure answer token."""


def main() -> None:
    """Print one line per family."""
    torch.set_num_threads(1)
    for family in FAMILIES:
        edits, loaded = stream("families", 0, family), runtime(family)
        run = next(run for run in results() if run["row"] == f"{family}: default")
        kept = np.array(run["values"]["M-Loc"])  # in the order of the edits' ids
        with loaded.attached([]):
            sure = np.array([_sureness(loaded, edit) > SURE for edit in sorted(edits, key=lambda edit: edit.id)])
        print(f"{family}: sure {sure.mean():.0%}, M-Loc there {kept[sure].mean():.1%}, else {kept[~sure].mean():.1%}")


def _sureness(loaded, edit) -> float:
    query = next(probe.query for probe in probes_of(edit) if probe.kind == "loc_image")
    answer = loaded.generate([query], ANSWER_TOKENS)[0]
    scored = loaded.score(loaded.batch([loaded.encode(query).followed_by(answer)]))
    own = scored.log_probabilities().gather(-1, scored.targets[..., None])[..., 0]
    return float(own[scored.mask].exp().min())


if __name__ == "__main__":
    main()
