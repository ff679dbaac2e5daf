"""`research/claims.md`: the paper's claims with what decides each, from `more_lab/results/claims.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from generator.markdown import fence, page, table
from more_lab.panel.table import RESULTS, text_of

SOURCE = RESULTS / "claims.toml"
HOLDS, FAILS, OPEN, UNMEASURED = "holds", "does not hold", "not decided", "not measured"
COLUMNS = "", "claim", "printed", "arithmetic or algebra", "in small worlds", "on the named model"
NONE = "–"
CALIBRATED = "nine"
"""Settings of an estimate whose name says that it is calibrated."""

_TITLE = "The paper's claims, one by one"
_FIGURE = (
    "![Differences with intervals between settings of the paper's write and its own, in Rel, M-Gen, M-Loc and the mean "
    "of five: one P for all sites is level, a key of every token and a smaller lambda are ahead, a basis trained at "
    "rate 0.1 is behind.](../img/ablations.svg)"
)
_COMMANDS = """\
## Commands

What would test a claim on the model that the paper names. NAME is what stands behind the command's name in the row.
The files of `recipes/sweeps/` say what to change in them for that model. What it needs: [the paper's
table](paper.md#on-llava-15-7b).

<!-- not run: needs 14 GB of weights and the real data -->"""


def claims_page() -> str:
    """Return the page of claims."""
    values = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    commands = f"{_COMMANDS}\n{_tests(values['tests'])}"
    parts = text_of("claims"), *_parts(values["claim"]), commands
    return page(_TITLE, "more_lab/results/claims.toml", *parts)


def judged(estimate: Mapping[str, Any]) -> str:
    """Return what one interval says of the side that is claimed for it."""
    _, low, high = estimate["value"]
    side, _, number = estimate["claimed"].rpartition(" ")
    bound, margin = float(number), estimate.get("margin", 0)
    if side == "within":
        on, off = -bound <= low and high <= bound, high < -bound or low > bound
    else:
        on, off = (low > bound, high <= bound) if side == ">" else (high < bound, low >= bound)
        off |= bool(margin) and bound - margin <= low and high <= bound + margin
    return HOLDS if on else FAILS if off else OPEN


def verdict(claim: Mapping[str, Any]) -> str:
    """Return what all intervals of a row say together: the same, or nothing; or that nothing was measured."""
    if "unmeasured" in claim:
        return UNMEASURED
    said = {judged(estimate) for estimate in claim.get("estimates", ())}
    return said.pop() if len(said) == 1 else OPEN


def shown(estimate: Mapping[str, Any]) -> str:
    """Return an estimate as a cell has it: `mean minus FT-M +8.9 (+2.6 to +15.2)`."""
    sign, digits = "+" if "baseline" in estimate else "", estimate.get("digits", 1)
    value, low, high = (f"{number:{sign}.{digits}f}" for number in estimate["value"])
    return f"{estimate['what']} {value} ({low} to {high})"


def claimed(estimate: Mapping[str, Any]) -> str:
    """Return on which side an estimate is claimed to lie, and what else is unusual: `claimed > 0, n = 12 edits`."""
    margin = f", margin {estimate['margin']}" if "margin" in estimate else ""
    count = f", n = {estimate['n']}" if "n" in estimate else ""
    settings = f", {estimate['settings']}" if estimate.get("settings", CALIBRATED) != CALIBRATED else ""
    return f"claimed {estimate['claimed']}{margin}{count}{settings}"


def small(claim: Mapping[str, Any]) -> str:
    """Return the cell of the small worlds; what is claimed of all its estimates alike stands in front of them."""
    estimates = claim.get("estimates", ())
    sides = [claimed(estimate) for estimate in estimates]
    alike = len(set(sides)) == 1
    parts = [shown(one) if alike else f"{shown(one)}, {side}" for one, side in zip(estimates, sides, strict=True)]
    parts += [claim[key] for key in ("small", "unmeasured") if key in claim]
    head = f"**{verdict(claim)}**" + (f", {sides[0]}" if alike else "")
    return f"{head}: {'; '.join(parts)}" if parts else NONE


def named(claim: Mapping[str, Any]) -> str:
    """Return the cell of the named model."""
    if "named" in claim:
        return str(claim["named"])
    command, what = claim.get("test", ("", ""))
    asked = f"`{command}`" + (f": `{what}`" if what else "")
    return f"untested ({asked})" if command else NONE


def _parts(claims: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    numbered = enumerate(claims, 1)
    for part, rows in groupby(numbered, lambda row: str(row[1]["part"])):
        yield f"## {part}"
        yield _FIGURE if part.startswith("Ablations") else ""
        yield table(COLUMNS, (_row(number, claim) for number, claim in rows))


def _row(number: int, claim: Mapping[str, Any]) -> tuple[str, ...]:
    paper = str(claim.get("paper", NONE))
    said = next((word for word in (HOLDS, FAILS, OPEN) if paper.startswith(word)), "")
    paper = f"**{said}**{paper[len(said) :]}" if said else paper
    return str(number), claim["says"], f"{claim['printed']} ({claim['place']})", paper, small(claim), named(claim)


def _tests(commands: Mapping[str, str]) -> str:
    return fence("bash", "\n".join(f"{command}    # {name}" for name, command in commands.items()))
