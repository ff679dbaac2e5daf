"""Gates: how they are written, and their verdict exactly at the threshold."""

import math

import pytest

from more_cli.errors import GateError, UsageError
from more_cli.evaluation.gates import judge, parse_gate, require
from more_cli.evaluation.metrics import Estimate, estimate
from more_cli.evaluation.names import all_groups, full_names, is_locality, is_share
from support.pages import NINETEEN_OF_TWENTY


def met(text: str, estimates=NINETEEN_OF_TWENTY) -> bool:
    (found,) = judge([parse_gate(text)], estimates)
    return found.met


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rel.gen_exact>=0.95", True),
        ("rel.gen_exact>0.95", False),
        ("rel.gen_exact<=0.95", True),
        ("rel.gen_exact<0.95", False),
        ("rel.gen_exact>=0.9500000001", False),
        (" rel.gen_exact  >=  .95 ", True),
    ],
)
def test_a_gate_at_exactly_the_value(text: str, expected: bool) -> None:
    assert met(text) is expected


@pytest.mark.parametrize("n", range(1, 60))
def test_a_proportion_meets_the_decimal_it_is_written_as(n: int) -> None:
    """No part of 20, 50 or 100 falls short of its own decimal by a rounding error."""
    for k in range(n + 1):
        value = {"rel.gen_exact": estimate([1.0] * k + [0.0] * (n - k))}
        assert met(f"rel.gen_exact>={k / n!r}", value)
        if 100 % n == 0:
            assert met(f"rel.gen_exact>={k * 100 // n / 100:.2f}", value)


def test_an_interval_has_two_ends_to_gate_on() -> None:
    interval = {"loc_image.loc_expkl_answer": Estimate(0.95, 0.9, 0.98, 24, "bootstrap")}
    assert met("loc_image.loc_expkl_answer.low>=0.9", interval)
    assert not met("loc_image.loc_expkl_answer.low>0.9", interval)
    assert met("loc_image.loc_expkl_answer.high<=0.98", interval)
    assert not met("loc_image.loc_expkl_answer.high>=0.981", interval)


def test_what_was_not_measured_and_what_is_not_finite_is_missed() -> None:
    (found,) = judge([parse_gate("gen_image.gen_exact>=0")], NINETEEN_OF_TWENTY)
    assert (found.met, found.actual) == (False, None)
    assert found.reason == "nothing was measured: there are no `gen_image` probes"
    broken = {"rel.target_nll": Estimate(math.nan, math.nan, math.nan, 3, "bootstrap")}
    assert not met("rel.target_nll<=5", broken)
    assert not met("rel.target_nll>=5", broken)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("rel.gen_exact", "is not a metric, one of >= <= > <, and a number", "in quotes"),
        ("rel.gen_exact=0.9", "is not a metric", "in quotes"),
        ("rel.gen_exact==0.9", "is not a metric", "in quotes"),
        ("0.5<rel.gen_exact<0.9", "is not a metric", "in quotes"),
        ("rel.gen_exact>=95%", "`95%` is not a number", "0.95 for 95 %"),
        ("rel.gen_exact>=nan", "`nan` is not a number", ""),
        ("rel.gen_exact>=inf", "`inf` is not a number", ""),
        ("rel.gen_exat>=0.9", "there is no metric `rel.gen_exat`", "did you mean `rel.gen_exact`"),
        ("gen_stops>=0.9", "there is no metric `gen_stops`", "`rel.gen_stops` or `gen_text.gen_stops`"),
        ("loc_text.gen_exact>=0.9", "there is no metric", "`gen_text.gen_exact`"),
        ("rel.gen_exact.mean>=0.9", "there is no metric `rel.gen_exact.mean`", "`rel.gen_exact`"),
        ("???>=0.9", "there is no metric `???`", "`loc_image.loc_gen_same`"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_was_meant(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_gate(text)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_every_missed_gate_has_its_line() -> None:
    texts = ["rel.gen_exact>=0.95", "rel.gen_exact.low>=0.95", "gen_text.gen_exact>=0.5"]
    found = judge([parse_gate(text) for text in texts], NINETEEN_OF_TWENTY)
    require(found[:1])
    with pytest.raises(GateError) as caught:
        require(found)
    assert caught.value.exit_code == 6
    assert caught.value.message.splitlines() == [
        "gate missed: rel.gen_exact.low>=0.95: 0.95, 95 % interval 0.763869 to 0.991119, n 20",
        "error: gate missed: gen_text.gen_exact>=0.5: nothing was measured: there are no `gen_text` probes",
    ]


def test_only_the_likelihood_is_no_share() -> None:
    likelihoods = {f"{group}.target_nll" for group in all_groups() if not is_locality(group)}
    assert {name for name in full_names() if not is_share(name)} == likelihoods


def test_what_only_a_suite_measures_is_said() -> None:
    (found,) = judge([parse_gate("loc_text.loc_top1_all>=0.9")], NINETEEN_OF_TWENTY)
    assert (found.met, found.reason) == (False, "nothing was measured: `--suite` with `--metrics all` measures it")
