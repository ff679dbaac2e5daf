"""LONG.md: the cost of an edit by its number over a long stream, and memory over time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from more_lab.experiments.scaling import growth
from more_lab.panel.table import RESULTS

STREAM = (
    "The embedded model with its anchors and the default recipe. The stream repeats the 336 questions of the "
    "evaluation pool: first with their right answers, then in every round with other answers of the same kind, "
    "random with a fixed seed, so that no answer is right already and every edit replaces an earlier one."
)
SETTLED = 336
"""After this edit every question was asked once, so that rehearsal samples from its full number of past edits."""


def read(name: str) -> dict[str, Any]:
    """Return a result that is one JSON object."""
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def columns(made: dict[str, Any], first: int = SETTLED) -> dict[str, np.ndarray]:
    """Return the measurements of each edit after the first `first`; those of writes for edits that have one."""
    taken = {name: np.asarray(values, dtype=float)[first:] for name, values in made["per_edit"].items()}
    wrote = taken["writes"] > 0
    writes, alone, bare, samples = (taken[name][wrote] for name in ("writes", "alone", "bare", "samples"))
    return {
        "edit: samples sent (forward only: a third)": taken["cost"],
        "edit: writes": taken["writes"],
        "edit: wall ms": taken["wall"],
        "edit: CPU ms": taken["cpu"],
        "edit: CPU ms a sample sent": taken["cpu"] / taken["cost"],
        "write: samples": samples / writes,
        "write: CPU ms": alone / writes,
        "write: CPU ms a sample": alone / samples,
        "bare loop: CPU ms": bare,
        "write: CPU ms a sample over the bare loop's ms": alone / samples / bare,
    }


def page() -> Iterator[str]:
    """Yield LONG.md."""
    made = read("long.json")
    count = made["edits"]
    long = count > 2 * SETTLED
    first = SETTLED if long else 1  # the first edit loads the model
    rows = columns(made, first)
    wrote = np.mean(np.asarray(made["per_edit"]["writes"]) > 0)
    yield f"# A stream of {made['edits']:,} edits"
    yield ""
    yield STREAM
    yield ""
    yield "Made with `python tests/bench/long.py run`, and this page from its result with `python docs/figures.py`."
    yield f"The machine: {made['machine']}, load {made['load'][2]} at the end, {made['seconds'] / 3600:.1f} hours."
    yield ""
    yield f"| | per edit, median | change over edits {first + 1} to {count}, % of the median (95 % interval) |"
    yield "|---|---|---|"
    for name, values in rows.items():
        found = "too short to say"
        if long:
            change, low, high = (100 * part / np.median(values) for part in growth(values, SETTLED))
            found = f"{change:+.1f} ({low:+.1f} to {high:+.1f})"
        yield f"| {name} | {np.median(values):.2f} | {found} |"
    yield ""
    yield f"Change is that of a straight line through these edits; its interval is a bootstrap over blocks of {SETTLED}"
    yield f"in a row: the questions come back after as many. Before edit {SETTLED} there are fewer past edits to check."
    yield "A write is its forward and backward pass, with all samples in it, and the update of B, without the checks"
    yield "before and after it. The bare loop is the very first write as plain PyTorch (`more bench --floor`), run"
    yield "after every edit: it shows how fast the machine was then. Compared with it, a sample's time is constant."
    yield ""
    yield "| | before | first edit | last check | after |"
    yield "|---|---|---|---|---|"
    places = (made["before"], made["held"][0], made["held"][-1], made["after"])
    yield "| resident, MiB | " + " | ".join(f"{place['resident'] / 2**20:.0f}" for place in places) + " |"
    for name in ("descriptors", "hooks"):
        yield f"| {name} | " + " | ".join(str(place[name]) for place in places) + " |"
    yield ""
    yield "The hooks in the last column are transformers' own, two on each vision layer from its first pass on."
    yield ""
    shown = ", ".join(f"{count} {status}" for status, count in made["statuses"].items())
    stand = ", ".join(f"{count} {status}" for status, count in made["standing"].items())
    yield f"- When applied: {shown}; {wrote:.1%} wrote something. At the end: {stand}."
    first_size, last_size = made["state_bytes"]
    yield f"- State: {first_size:,} bytes before, {last_size:,} after (its header counts edits and keys);"
    yield f"  ledger {made['ledger_bytes'] / made['edits']:,.0f} bytes an edit."
    yield f"- P after {made['keys']:,} keys of all sites: at most {made['P_error']:.1e} from its closed form"
    yield "  (I + sum z z^T / lambda)^-1, relative to the largest entry of that, in float64."
    yield from opened(read("ledger.json"))


def opened(found: dict[str, Any]) -> Iterator[str]:
    """Yield the page's paragraph about a long ledger."""
    yield ""
    yield f"A ledger of {found['lines']:,} lines ({found['bytes'] / 2**20:.0f} MiB; 40 edits of this stream, repeated),"
    yield "`long.py open`, median of five, in seconds of CPU time (wall time in brackets): it opens, with every line"
    yield f"checked, in {found['open'][0]} ({found['open'][1]}); a state resumes with it, its memory of every edit"
    yield f"rebuilt, in {found['resume'][0]} ({found['resume'][1]}), before the model loads. Load {found['load'][0]}."
