"""Metrics against examples worked by hand."""

import math

import pytest
import torch

from more_cli.evaluation import metrics
from more_cli.model.scored import Scored


def scored(probabilities, targets, mask) -> Scored:
    """(N, K, V) probabilities; log-probabilities are their own logits."""
    return Scored(torch.tensor(probabilities).log(), torch.tensor(targets), torch.tensor(mask))


# Two targets over the vocabulary {0, 1, 2}: the first is one token, right-aligned; the second has two, one right.
TARGETS = scored(
    [[[0.2, 0.3, 0.5], [0.1, 0.8, 0.1]], [[0.6, 0.3, 0.1], [0.5, 0.25, 0.25]]],
    [[0, 1], [0, 1]],
    [[False, True], [True, True]],
)


def test_teacher_forced_metrics() -> None:
    assert metrics.tf_exact(TARGETS) == [1.0, 0.0]
    assert metrics.tf_token_acc(TARGETS) == [1.0, 0.5]
    expected = [-math.log(0.8), -(math.log(0.6) + math.log(0.25)) / 2]
    assert metrics.target_nll(TARGETS) == pytest.approx(expected, rel=1e-5)


def test_locality_is_the_base_itself_for_an_unchanged_model() -> None:
    assert metrics.loc_top1_answer(TARGETS, TARGETS) == [1.0, 1.0]
    assert metrics.loc_expkl_answer(TARGETS, TARGETS) == pytest.approx([1.0, 1.0])


def test_locality_of_a_changed_model() -> None:
    base = scored([[[0.5, 0.25, 0.25], [0.9, 0.05, 0.05]]], [[0, 0]], [[True, True]])
    edited = scored([[[0.25, 0.5, 0.25], [0.9, 0.05, 0.05]]], [[0, 0]], [[True, True]])
    assert metrics.loc_top1_answer(edited, base) == [0.5]
    # KL(edited || base) = 0.25 ln(1/2) + 0.5 ln 2 = 0.25 ln 2 at the first position, 0 at the second.
    expected = (math.exp(-0.25 * math.log(2)) + 1.0) / 2
    assert metrics.loc_expkl_answer(edited, base) == pytest.approx([expected], rel=1e-5)


def test_the_end_of_sequence_counts_in_our_metrics_and_in_no_published_one() -> None:
    """Targets 0 1 and 2 1, of which 1 ends a sequence: the end is right once, the token before it twice."""
    found = scored(
        [[[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]], [[0.1, 0.1, 0.8], [0.8, 0.1, 0.1]]], [[0, 1], [2, 1]], [[True, True]] * 2
    )
    assert metrics.tf_token_acc(found) == [1.0, 0.5]
    assert metrics.tf_token_acc_noeos(found) == [1.0, 1.0]


def test_ranks_are_compared_one_by_one() -> None:
    """The first ten of twelve tokens in order; after the edit the second and third are swapped and one is new."""
    before = [float(-n) for n in range(12)]
    after = list(before)
    after[1], after[2], after[9], after[10] = before[2], before[1], before[10], before[9]
    base = Scored(torch.tensor([[before]]), torch.tensor([[0]]), torch.tensor([[True]]))
    edited = Scored(torch.tensor([[after]]), torch.tensor([[0]]), torch.tensor([[True]]))
    assert metrics.loc_top10_rank_answer(edited, base) == pytest.approx([7 / 10])
    assert metrics.loc_top1_answer(edited, base) == [1.0]
    assert metrics.loc_top10_rank_answer(TARGETS, TARGETS) == [1.0, 1.0], "a vocabulary of three has three ranks"


@pytest.mark.parametrize(
    ("answer", "target", "expected"),
    [
        ("It is a red tram, I think.", "Red tram", 1.0),
        ("a tramway", "tram", 0.0),
        ("tram", "tram stop", 0.0),
        ("it is 3.5 m", "3.5", 1.0),
        ("3x5", "3.5", 0.0),
        ("The tram.", "tram", 1.0),
        ("\u8fd9\u662f\u7ea2\u8272\u7684\u7535\u8f66\u3002", "\u7535\u8f66", 1.0),
        ("\u8fd9\u662ftram\u5417", "tram", 1.0),
        ("\u8fd9\u662ftrams\u5417", "tram", 0.0),
        ("\u0e23\u0e16\u0e44\u0e1f\u0e2a\u0e35\u0e41\u0e14\u0e07", "\u0e44\u0e1f", 1.0),
        ("", "tram", 0.0),
    ],
)
def test_an_answer_contains_whole_words(answer: str, target: str, expected: float) -> None:
    assert metrics.gen_contains(answer, target) == expected


def test_a_flip_is_what_is_not_the_same() -> None:
    assert metrics.of_texts("a", "a") == {"loc_gen_same": 1.0, "loc_flip": 0.0}
    assert metrics.of_texts("a", "b") == {"loc_gen_same": 0.0, "loc_flip": 1.0}


def test_positions_without_a_target_do_not_count() -> None:
    base = scored([[[0.9, 0.1], [0.5, 0.5]]], [[0, 0]], [[False, True]])
    edited = scored([[[0.1, 0.9], [0.5, 0.5]]], [[0, 0]], [[False, True]])
    assert metrics.loc_top1_answer(edited, base) == [1.0]
    assert metrics.loc_expkl_answer(edited, base) == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A Red  Square.", "red square"),
        ("the bridge", "bridge"),
        ("ﬁve", "five"),
        ("Antenna", "antenna"),
        ("yes!", "yes"),
        ("3+4", "3+4"),
        ("Hepatitis A", "hepatitis a"),
        ("the", "the"),
        ("東京タワー。", "東京タワー"),
        ("はい！", "はい"),
        ("نعم؟", "نعم"),
        ("हाँ।", "हाँ"),
        (" ? ", "?"),
    ],
)
def test_answers_are_compared_without_articles_case_and_final_punctuation(text: str, expected: str) -> None:
    assert metrics.normalise(text) == expected


def test_an_answer_of_punctuation_alone_is_not_any_other_and_not_none() -> None:
    for answer in ("", "!", "...", "yes"):
        found = metrics.of_generated(answer, "?", stops=True)
        assert (found["gen_exact"], found["gen_contains"]) == (0.0, 0.0), answer
    assert metrics.of_generated("?", "?", stops=True)["gen_exact"] == 1.0


def test_a_proportion_has_wilsons_interval() -> None:
    estimate = metrics.estimate([1.0] * 8 + [0.0] * 2)
    # Wilson's interval of 8 out of 10 as tabulated: 0.490 to 0.943.
    assert (estimate.value, estimate.n, estimate.interval) == (0.8, 10, "wilson")
    assert (estimate.low, estimate.high) == pytest.approx((0.4902, 0.9433), abs=1e-3)
    assert metrics.estimate([1.0]).high == 1.0


def test_anything_else_has_a_bootstrap_interval_that_is_the_same_every_time() -> None:
    values = [0.1, 0.5, 0.9, 0.7, 0.3]
    first, second = metrics.estimate(values), metrics.estimate(values)
    assert first == second
    assert first.interval == "bootstrap"
    assert first.value == pytest.approx(0.5)
    assert first.low < first.value < first.high


def test_probes_of_one_edit_count_once_in_an_interval() -> None:
    edits = [number for number in range(8) for _ in range(3)]
    agree = metrics.estimate([1.0] * 21 + [0.0] * 3, edits)
    assert (agree.value, agree.n, agree.interval) == (0.875, 24, "wilson")
    alone = metrics.estimate([1.0] * 7 + [0.0])
    assert (agree.low, agree.high) == (alone.low, alone.high)
    differ = metrics.estimate([1.0, 0.0, 0.0] * 8, edits)
    assert (differ.interval, differ.low, differ.high) == ("bootstrap", 1 / 3, 1 / 3)  # every edit is the same
    apart = metrics.estimate([0.0, 0.5] * 10, list(range(20)))
    assert apart == metrics.estimate([0.0, 0.5] * 10)


def test_edits_with_more_probes_count_more_in_a_resampled_mean() -> None:
    values, edits = [1.0, 1.0, 1.0, 0.5], ["a", "a", "a", "b"]
    found = metrics.estimate(values, edits)
    assert (found.value, found.low, found.high) == (0.875, 0.5, 1.0)
