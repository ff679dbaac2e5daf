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


def test_a_proportion_meets_the_decimal_it_is_written_as() -> None:
    """No part of 20, 50 or 100 falls short of its own decimal by a rounding error."""
    for n in range(1, 60):
        for k in range(n + 1):
            value = {"rel.gen_exact": estimate([1.0] * k + [0.0] * (n - k))}
            assert met(f"rel.gen_exact>={k / n!r}", value), (k, n)
            if 100 % n == 0:
                assert met(f"rel.gen_exact>={k * 100 // n / 100:.2f}", value), (k, n)


def test_an_interval_has_two_ends_to_gate_on() -> None:
    interval = {"loc_image.loc_expkl_answer": Estimate(0.95, 0.9, 0.98, 24, "bootstrap")}
    assert met("loc_image.loc_expkl_answer.low>=0.9", interval)
    assert not met("loc_image.loc_expkl_answer.low>0.9", interval)
    assert met("loc_image.loc_expkl_answer.high<=0.98", interval)
    assert not met("loc_image.loc_expkl_answer.high>=0.981", interval)


def test_what_was_not_measured_and_what_is_not_finite_is_missed() -> None:
    (found,) = judge([parse_gate("gen_image.gen_exact>=0")], NINETEEN_OF_TWENTY)
    assert (found.met, found.actual) == (False, None)
    assert found.reason == "nothing was measured: no edit has `image_rephrases`"
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
        ("rel.gen_exact>=95", "`--gate rel.gen_exact>=95`: `95` is outside 0 to 1", "fractions: write 0.95 for 95 %"),
        ("rel.gen_exact.low>=99.5", "`99.5` is outside 0 to 1", "write 0.995 for 99.5 %"),
        ("loc_text.loc_flip<=-0.1", "`-0.1` is outside 0 to 1", "0.95 for 95 %"),
        ("rel.target_nll<=-1", "`-1` is below 0", "nats per token"),
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


@pytest.mark.parametrize(
    ("name", "threshold", "within"),
    [
        ("rel.gen_exact@online", "1", True),
        ("rel.gen_exact@online@10", "2", False),
        ("rel.target_nll@online", "2", True),
        ("mme.accuracy_change", "-0.05", True),
        ("mme.color.accuracy_change", "-5", False),
    ],
)
def test_every_metric_has_its_range(name: str, threshold: str, within: bool) -> None:
    if within:
        assert parse_gate(f"{name}>={threshold}", [name]).threshold == float(threshold)
        return
    with pytest.raises(UsageError) as caught:
        parse_gate(f"{name}>={threshold}", [name])
    assert f"`{threshold}` is outside " in caught.value.message


def test_an_interval_over_few_samples_is_a_warning_and_a_miss_if_strict() -> None:
    few, enough = ({"rel.gen_exact": estimate([1.0] * n)} for n in (9, 10))
    (found,) = judge([parse_gate("rel.gen_exact.low>=0.5")], few)
    assert (found.met, found.warning) == (True, "an interval over 9 samples is unsure, at least 10 are needed")
    assert found.reason.endswith(f"n 9; warning: {found.warning}")
    strict = parse_gate("rel.gen_exact.low>=0.5", strict=True)
    assert [found.met for found in judge([strict], few)] == [False]
    assert [(found.met, found.warning) for found in judge([strict], enough)] == [(True, "")]
    (value,) = judge([parse_gate("rel.gen_exact>=0.5", strict=True)], few)
    assert (value.met, value.warning) == (True, "")


def test_every_missed_gate_has_its_line() -> None:
    texts = ["rel.gen_exact>=0.95", "rel.gen_exact.low>=0.95", "gen_text.gen_exact>=0.5"]
    found = judge([parse_gate(text) for text in texts], NINETEEN_OF_TWENTY)
    require(found[:1])
    with pytest.raises(GateError) as caught:
        require(found)
    assert caught.value.exit_code == 6
    assert caught.value.message.splitlines() == [
        "gate missed: rel.gen_exact.low>=0.95: 0.95, 95 % interval 0.763869 to 0.991119, n 20",
        "error: gate missed: gen_text.gen_exact>=0.5: nothing was measured: no edit has `rephrases`",
    ]


def test_only_the_likelihood_is_no_share() -> None:
    likelihoods = {f"{group}.target_nll" for group in all_groups() if not is_locality(group)}
    assert {name for name in full_names() if not is_share(name)} == likelihoods


def test_what_only_a_suite_measures_is_said() -> None:
    (found,) = judge([parse_gate("loc_text.loc_top1_all>=0.9")], NINETEEN_OF_TWENTY)
    assert (found.met, found.reason) == (False, "nothing was measured: `--suite` with `--metrics all` measures it")


@pytest.mark.parametrize(
    ("name", "field", "of_probes"),
    [
        ("rel.gen_exact", "there are no edits", False),
        ("gen_text.gen_exact", "no edit has `rephrases`", False),
        ("portability.gen_exact", "no edit has `portability`", False),
        ("port_2.gen_exact", 'no edit has `portability` with `"hop": 2`', False),
        ("loc_text.loc_gen_same", "no edit has `locality` without `image`", False),
        ("loc_image.loc_gen_same", "no edit has `locality` with `image`", False),
        ("rel.gen_exact", "no line of the file has an `answer`", True),
        ("loc_text.loc_gen_same", "no line of the file is without `answer` and `image`", True),
        ("loc_image.loc_gen_same", "no line of the file has an `image` and no `answer`", True),
        ("gen_text.gen_exact", "a file of `--probes` gives rel, loc_text, loc_image only", True),
    ],
)
def test_a_gate_on_what_was_not_measured_names_the_field_to_add(name: str, field: str, of_probes: bool) -> None:
    (found,) = judge([parse_gate(f"{name}>=0")], {}, of_probes=of_probes)
    assert (found.met, found.reason) == (False, f"nothing was measured: {field}")
