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
from more_cli.evaluation.names import EVERYWHERE_METRICS, FEW, full_names, is_share
from more_cli.text import counted, shorten

if TYPE_CHECKING:
    from more_cli.evaluation.metrics import Estimate

Bound = Literal["value", "low", "high"]

OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_FORM = re.compile(r"\s*([^\s<>=]+)\s*(>=|<=|>|<)\s*([^\s<>=]+)\s*")
_EXAMPLE = 'write it in quotes, for example --gate "rel.gen_exact>=0.95" or "loc_image.loc_expkl_answer.low>=0.9"'
_FRACTIONS = "values are fractions: 0.95 for 95 %"
CHANGE = "accuracy_change"
"""Metric of yes/no suites: state minus base, in [-1, 1]."""
_NO_EDIT = {
    "rel": "there are no edits",
    "gen_text": "no edit has `rephrases`",
    "gen_image": "no edit has `image_rephrases`",
    "portability": "no edit has `portability`",
    "loc_text": "no edit has `locality` without `image`",
    "loc_image": "no edit has `locality` with `image`",
}
_NO_PROBE = {
    "rel": "no line of the file has an `answer`",
    "loc_text": "no line of the file is without `answer` and `image`",
    "loc_image": "no line of the file has an `image` and no `answer`",
}
"""Why a kind was not measured: which field is missing."""


@dataclass(frozen=True)
class Gate:
    """A metric, or one end of its 95 % interval, and the threshold it is compared with."""

    metric: str
    """Full name."""
    bound: Bound
    operator: str
    threshold: float
    """In the metric's unit: a fraction, or nats per token."""
    strict: bool = False
    """Whether it is missed when there are too few samples for its bound."""

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
    """What was measured, in words, with the warning."""
    warning: str = ""
    """Why the verdict is unsure."""


def parse_gate(text: str, names: Sequence[str] = (), *, strict: bool = False) -> Gate:
    """Read a gate as it is typed: `METRIC>=NUMBER`, with `.low` or `.high` after the metric for its interval's end.

    The metric is one of `names`, by default those that score a state. `strict` is that of `Gate`.

    Raises:
        UsageError: not of that form, no such metric, not a number, or a number that the metric cannot reach.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError(
            f"`--gate {shorten(text)}` is not a metric, one of {' '.join(OPERATORS)}, and a number", _EXAMPLE
        )
    name, sign, number = found.groups()
    metric, bound = _split(name)
    names = names or full_names()
    if metric not in names:
        raise UsageError(f"`--gate {shorten(text)}`: there is no metric `{shorten(metric)}`", _nearest(metric, names))
    try:
        threshold = float(number)
    except ValueError:
        threshold = math.nan
    if not math.isfinite(threshold):
        raise UsageError(f"`--gate {shorten(text)}`: `{shorten(number)}` is not a number", _FRACTIONS)
    low, high = _range(metric)
    if not low <= threshold <= high:
        outside = f"outside {low:g} to {high:g}" if math.isfinite(high) else f"below {low:g}"
        raise UsageError(f"`--gate {shorten(text)}`: `{shorten(number)}` is {outside}", _fraction(threshold, low, high))
    return Gate(metric, bound, sign, threshold, strict)


def _range(metric: str) -> tuple[float, float]:
    """Return the smallest and the largest value that a metric can have."""
    name = metric.partition("@")[0]
    if name.endswith(f".{CHANGE}"):
        return -1.0, 1.0
    return 0.0, 1.0 if is_share(name) else math.inf


def _fraction(threshold: float, low: float, high: float) -> str:
    if math.isinf(high):
        return "it is measured in nats per token"
    share = threshold / 100
    return f"values are fractions: write {share:g} for {threshold:g} %" if low <= share <= high else _FRACTIONS


def judge(gates: Sequence[Gate], estimates: Mapping[str, Estimate], *, of_probes: bool = False) -> list[Judgement]:
    """Compare gates with what was measured; a gate on a metric that was not measured is missed.

    `of_probes` says that the lines of a probes file were scored, not edits.
    """
    return [_judge(gate, estimates.get(gate.metric), of_probes) for gate in gates]


def require(judgements: Sequence[Judgement]) -> None:
    """Check that every gate was met.

    Raises:
        GateError: one line for every gate that was missed.
    """
    missed = [f"gate missed: {found.gate}: {found.reason}" for found in judgements if not found.met]
    if missed:
        raise GateError("\nerror: ".join(missed))


def _judge(gate: Gate, found: Estimate | None, of_probes: bool) -> Judgement:
    if found is None:
        return Judgement(gate, None, False, f"nothing was measured: {_missing(gate.metric, of_probes)}")
    actual = {"value": found.value, "low": found.low, "high": found.high}[gate.bound]
    warning = ""
    if gate.bound != "value" and found.few:
        warning = f"an interval over {counted(found.n, 'sample')} is unsure, at least {FEW} are needed"
    # k / n and the decimal a user types round to the same float, so a gate at exactly the value is met by >=.
    met = OPERATORS[gate.operator](actual, gate.threshold) and not (gate.strict and warning)
    interval = "" if found.few and gate.bound == "value" else f"95 % interval {found.low:.6g} to {found.high:.6g}, "
    reason = f"{found.value:.6g}, {interval}n {found.n}"
    return Judgement(gate, actual, met, f"{reason}; warning: {warning}" if warning else reason, warning)


def _missing(metric: str, of_probes: bool) -> str:
    """Return which field was missing, so that a metric was not measured."""
    kind, _, name = metric.partition("@")[0].partition(".")
    if name in EVERYWHERE_METRICS:
        return "`--suite` with `--metrics all` measures it"
    if of_probes:
        return _NO_PROBE.get(kind, f"a file of `--probes` gives {', '.join(_NO_PROBE)} only")
    hop = kind.removeprefix("port_")
    return _NO_EDIT[kind] if hop == kind else f'{_NO_EDIT["portability"]} with `"hop": {hop}`'


def _split(name: str) -> tuple[str, Bound]:
    if name.endswith(".low"):
        return name.removesuffix(".low"), "low"
    if name.endswith(".high"):
        return name.removesuffix(".high"), "high"
    return name, "value"


_USUAL = "rel.gen_exact", "gen_text.gen_exact", "gen_image.gen_exact", "loc_text.loc_gen_same", "loc_image.loc_gen_same"
"""Metrics that a hint names where none is spelled like what was typed."""


def _nearest(metric: str, names: Sequence[str]) -> str:
    """Return a hint with the names that were most likely meant: those that end with it, else those spelled alike."""
    near = [name for name in names if name.split(".")[1] == metric] or difflib.get_close_matches(metric, names, 3, 0.5)
    if not near:
        return f"for example {', '.join(f'`{name}`' for name in _USUAL)}; `--json` prints all"
    return f"did you mean {' or '.join(f'`{name}`' for name in near[:4])}?"
