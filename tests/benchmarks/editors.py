"""Editors side by side on one suite: the table of EDITORS.md, from the results of `more eval --suite`.

    for editor in none more naive more:paper more:authors ft-l ft-m lora; do
      more eval --suite e-vqa --editor $editor --json \\
        | python tests/benchmarks/editors.py keep > tests/benchmarks/results/editors/${editor/:/-}.json
    done
    python tests/benchmarks/editors.py > tests/benchmarks/EDITORS.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "editors"
ORDER = ("none", "more", "naive", "more:paper", "more:authors", "ft-l", "ft-m", "lora")
FIVE = {
    "Rel": "rel.tf_exact",
    "T-Gen": "gen_text.tf_exact",
    "M-Gen": "gen_image.tf_exact",
    "T-Loc": "loc_text.loc_expkl_answer",
    "M-Loc": "loc_image.loc_expkl_answer",
}
READOUTS = ("final@100", "online@100", "final@10", "online@10", "final@1")


def show() -> Iterator[str]:
    """Yield EDITORS.md."""
    yield (Path(__file__).parent / "editors_head.md").read_text(encoding="utf-8")
    for readout in READOUTS:
        yield f"\n## {readout}\n"
        yield "| editor | " + " | ".join(FIVE) + " | mean of five | cost per edit |"
        yield "|---" * (len(FIVE) + 3) + "|"
        for editor in ORDER:
            yield row(
                editor, json.loads((RESULTS / f"{editor.replace(':', '-')}.json").read_text(encoding="utf-8")), readout
            )


def row(editor: str, run: dict[str, Any], readout: str) -> str:
    """One editor: values in % with their 95 % interval."""
    found = [run["protocols"][readout][name] for name in FIVE.values()]
    cells = [f"{100 * one['value']:.1f} ({100 * one['low']:.1f}-{100 * one['high']:.1f})" for one in found]
    mean = 100 * sum(one["value"] for one in found) / len(found)
    cost = sum(step["outcome"]["cost"] + step["catch_up"] for step in run["stream"]) / len(run["stream"])
    return "| " + " | ".join((editor, *cells, f"{mean:.1f}", f"{cost:.1f}")) + " |"


def kept(run: dict[str, Any]) -> dict[str, Any]:
    """A result without its score matrix, the values of every edit and where the model lay."""
    return {key: value for key, value in run.items() if key not in ("matrix", "per_edit", "model")}


if __name__ == "__main__":
    print(json.dumps(kept(json.load(sys.stdin)), indent=1) if sys.argv[1:] == ["keep"] else "\n".join(show()))
