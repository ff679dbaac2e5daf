"""Gates: conditions on metrics that a command must meet to succeed, such as `rel.gen_exact>=0.95`."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from more_cli.errors import GateError, UsageError
from more_cli.evaluation.names import EVERYWHERE_METRICS, full_names

if TYPE_CHECKING:
    from more_cli.evaluation.metrics import Estimate

Bound = Literal["value", "low", "high"]

OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_FORM = re.compile(r"\s*([^\s<>=]+)\s*(>=|<=|>|<)\s*([^\s<>=]+)\s*")
_EXAMPLE = 'write it in quotes, for example --gate "rel.gen_exact>=0.95" or "loc_image.loc_expkl_answer.low>=0.9"'


@dataclass(frozen=True)
class Gate:
    """A metric, or one end of its 95 % interval, and the threshold it is compared with."""

    metric: str
    """Full name."""
    bound: Bound
    operator: str
    threshold: float
    """In the metric's unit: a fraction, or nats per token."""

    def __str__(self) -> str:
        bound = "" if self.bound == "value" else f".{self.bound}"
        return f"{self.metric}{bound}{self.operator}{self.threshold:.12g}"


@dataclass(frozen=True)
class Judgement:
    """The result of a gate."""

    gate: Gate
    actual: float | None
    """None when nothing was measured."""
    met: bool
    reason: str
    """What was measured, in words."""


def parse_gate(text: str, names: Sequence[str] = ()) -> Gate:
    """Read a gate as it is typed: `METRIC>=NUMBER`, with `.low` or `.high` after the metric for its interval's end.

    The metric is one of `names`, by default those that score a state.

    Raises:
        UsageError: not of that form, no such metric, or not a number.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError(f"`--gate {text}` is not a metric, one of {' '.join(OPERATORS)}, and a number", _EXAMPLE)
    name, sign, number = found.groups()
    metric, bound = _split(name)
    names = names or full_names()
    if metric not in names:
        raise UsageError(f"`--gate {text}`: there is no metric `{metric}`", _nearest(metric, names))
    try:
        threshold = float(number)
    except ValueError:
        threshold = math.nan
    if not math.isfinite(threshold):
        raise UsageError(f"`--gate {text}`: `{number}` is not a number", "values are fractions: 0.95 for 95 %")
    return Gate(metric, bound, sign, threshold)


def judge(gates: Sequence[Gate], estimates: Mapping[str, Estimate]) -> list[Judgement]:
    """Compare gates with what was measured; a gate on a metric that was not measured is missed."""
    return [_judge(gate, estimates.get(gate.metric)) for gate in gates]


def require(judgements: Sequence[Judgement]) -> None:
    """Check that every gate was met.

    Raises:
        GateError: one line for every gate that was missed.
    """
    missed = [f"gate missed: {found.gate}: {found.reason}" for found in judgements if not found.met]
    if missed:
        raise GateError("\nerror: ".join(missed))


def _judge(gate: Gate, found: Estimate | None) -> Judgement:
    if found is None:
        kind, metric = gate.metric.split(".")
        absent = f"there are no `{kind}` probes"
        if metric in EVERYWHERE_METRICS:
            absent = "`--suite` with `--metrics all` measures it"
        return Judgement(gate, None, False, f"nothing was measured: {absent}")
    actual = {"value": found.value, "low": found.low, "high": found.high}[gate.bound]
    # k / n and the decimal a user types round to the same float, so a gate at exactly the value is met by >=.
    met = OPERATORS[gate.operator](actual, gate.threshold)
    return Judgement(
        gate, actual, met, f"{found.value:.6g}, 95 % interval {found.low:.6g} to {found.high:.6g}, n {found.n}"
    )


def _split(name: str) -> tuple[str, Bound]:
    if name.endswith(".low"):
        return name.removesuffix(".low"), "low"
    if name.endswith(".high"):
        return name.removesuffix(".high"), "high"
    return name, "value"


def _nearest(metric: str, names: Sequence[str]) -> str:
    """Return the names that were most likely meant: those that end with it, else those spelled alike."""
    near = [name for name in names if name.split(".")[1] == metric] or difflib.get_close_matches(metric, names, 3, 0.5)
    known = near or [name for name in names if "@" not in name]
    return f"did you mean {' or '.join(f'`{name}`' for name in known)}?"
