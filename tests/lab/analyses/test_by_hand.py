"""The arithmetic of the analyses against naive computations and closed forms."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from more_cli.evaluation.metrics import change
from more_cli.model.changes import Change
from more_lab.analyses import capability, drift, flips, geometry, rollout, scales, stream
from more_lab.analyses.figures import density
from more_lab.analyses.kept import KeptRun
from more_lab.editors.moments import Moments


def run_of(**facts: Any) -> KeptRun:
    return cast(KeptRun, SimpleNamespace(folder="run", label="more", **facts))


def updates(count: int) -> list[dict[str, Change]]:
    """Edits of two weights; the last one writes only the first."""
    generator = torch.Generator().manual_seed(0)
    right = torch.randn(3, 40, generator=generator)
    found = []
    for t in range(count):
        found.append({"a": Change(torch.randn(30, 3, generator=generator), right)})
        if t < count - 1:
            found[-1]["b"] = Change(torch.randn(20, 20, generator=generator))
    return found


def test_the_overlap_is_that_of_sets() -> None:
    run = run_of(updates=updates(4))
    found = geometry.overlaps(run)
    for i in range(4):
        for j in range(4):
            shares = []
            for path, k in (("a", 12), ("b", 4)):
                if path in run.updates[i] and path in run.updates[j]:
                    sets = []
                    for t in (i, j):
                        entries = run.updates[t][path].dense().abs().flatten().tolist()
                        order = sorted(range(len(entries)), key=lambda place, e=entries: (-e[place], place))
                        sets.append(set(order[:k]))
                    shares.append(len(sets[0] & sets[1]) / k)
            assert found[i, j] == pytest.approx(sum(shares) / len(shares))


def test_cosines_are_those_of_the_matrices_and_unknown_where_nothing_was_written() -> None:
    run = run_of(updates=[*updates(3), {}])
    found = geometry.cosines(run)
    for i in range(3):
        for j in range(3):
            both = [path for path in ("a", "b") if path in run.updates[i] and path in run.updates[j]]
            naive = []
            for path in both:
                a, b = (run.updates[t][path].dense().double().flatten() for t in (i, j))
                naive.append(float(a @ b / a.norm() / b.norm()))
            assert found[i, j] == pytest.approx(sum(naive) / len(naive), abs=1e-6)
    assert np.isnan(found[3]).all()
    assert np.isnan(found[:, 3]).all()


def test_the_horizon_by_hand() -> None:
    matrix = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, math.nan], [0.0, math.nan, 1.0]])
    assert geometry.by_lag(matrix) == [(0.5, 0.0, 1), (0.0, 0.0, 1)]
    assert geometry.first_below([0.5, 0.0]) == 2
    assert geometry.first_below([0.5, 0.2]) == math.inf
    mean, low, high = geometry.between(matrix)
    assert mean == pytest.approx(0.25)
    assert 0.0 <= low <= mean <= high <= 0.5


def test_distances_of_identical_states_are_zero_and_known_in_closed_form() -> None:
    states = np.random.default_rng(0).normal(size=(20, 50))
    same = drift.distances(states, states)
    assert same["linear CKA"] == pytest.approx(1.0)
    assert same["cosine"] == pytest.approx(1.0)
    assert same["shift in standard deviations"] == 0.0
    assert same["Frechet distance over variance"] == pytest.approx(0.0, abs=1e-9)
    assert drift.frechet(states, states + 2.0) == pytest.approx(50 * 4.0), "a shift alone: its squared length"
    few = np.random.default_rng(1).normal(size=(400, 3))
    scaled = 3 * few  # covariances C and 9 C: tr(C + 9 C - 2 * 3 C) = 4 tr C
    mean = float(((3 - 1) * few.mean(axis=0) ** 2 * (3 - 1)).sum())
    assert drift.frechet(few, scaled) == pytest.approx(4 * np.trace(np.cov(few.T)) + mean)
    turn, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(50, 50)))
    assert drift.linear_cka(states, 2 * states @ turn) == pytest.approx(1.0)


def test_moments_in_parts_are_those_of_the_whole() -> None:
    rows = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * 3 + 100
    moments = Moments(6)
    for part in (rows[:7], rows[7:7], rows[7:30], rows[30:]):
        moments.add(part)
    assert scales.log_variance(moments) == pytest.approx(np.log10(rows.double().var(dim=0).numpy()))


def test_a_density_sums_to_one() -> None:
    grid = np.linspace(-10, 10, 2001)
    found = density(np.random.default_rng(0).normal(size=100), grid)
    assert float(found.sum() * (grid[1] - grid[0])) == pytest.approx(1.0, abs=1e-6)


def test_words_that_two_questions_share() -> None:
    assert flips.token_f1("What colour is it?", "what COLOUR is it ?") == 1.0
    assert flips.token_f1("what is it", "who knows") == 0.0
    assert flips.token_f1("is it red", "it is is") == pytest.approx(2 / 3)


def test_the_permutation_test_separates_what_differs() -> None:
    assert flips.permutation_p([0.0] * 10, [1.0] * 10) < 0.01
    assert flips.permutation_p([0.0, 1.0], [0.0, 1.0]) == 1.0
    assert math.isnan(flips.permutation_p([], [1.0]))


def scored(rel: float, gen: float, flip: float) -> list[dict[str, Any]]:
    return [
        {"kind": "rel", "values": {"gen_exact": rel, "tf_token_acc": rel}},
        {"kind": "gen_text", "values": {"gen_exact": gen}},
        {"kind": "loc_image", "values": {"loc_flip": flip}},
    ]


class Scored:
    """A run of five edits."""

    def __init__(self) -> None:
        found = (scored(1, 1, 0), scored(1, 0, 0), scored(1, 1, 1), scored(1, 0, 1), scored(0, 1, 0))
        self.cells = {(5, i): scores for i, scores in enumerate(found, 1)}

    def __len__(self) -> int:
        return 5


def test_scopes_by_hand() -> None:
    assert stream.scopes(cast(KeptRun, Scored())) == dict.fromkeys(stream.SCOPES, 1), "the last one does not hold"


def test_reliability_by_lag_by_hand() -> None:
    cells = {(1, 1): scored(1, 0, 0), (2, 2): scored(0.5, 0, 0), (2, 1): scored(0.25, 0, 0), (0, 1): scored(1, 1, 1)}
    matrix = stream.reliability(run_of(cells=cells))
    assert matrix == {(1, 1): 1.0, (2, 2): 0.5, (2, 1): 0.25}, "an edit made alone is another protocol"
    assert stream.by_lag(matrix) == {0: 0.75, 1: 0.25}


def test_settings_that_differ_name_the_runs() -> None:
    def facts(editor: str, **constants: Any) -> dict[str, Any]:
        return {"editor": editor, "constants": constants}

    runs = [facts("more", rank=8, text={"eta": 1}), facts("more", rank=16, text={"eta": 1})]
    assert stream.differing(runs) == ["rank=8", "rank=16"]
    runs = [facts("more", text={"eta": 1}), facts("more", text={"eta": 2})]
    assert stream.differing(runs) == ["text.eta=1", "text.eta=2"]
    assert stream.differing([facts("more", rank=8), facts("ft-l", steps=2)]) == ["editor=more", "editor=ft-l"]
    assert stream.differing([facts("more"), facts("more")]) == ["run 1", "run 2"]
    runs = [facts("more", rank=8), facts("more", rank=16), facts("ft-l", steps=2)]
    assert stream.differing(runs) == ["editor=more, rank=8", "editor=more, rank=16", "editor=ft-l"]
    long = [facts("more", description=letter * 40) for letter in "ab"]
    assert stream.differing(long) == ["run 1", "run 2"]
    runs = [facts("more") | {"on": {"suite": "a"}}, facts("more") | {"on": {"suite": "b"}}]
    assert stream.differing(runs) == ["suite=a", "suite=b"]


def test_accuracy_over_images_and_answers_that_say_neither() -> None:
    pairs = [[("Yes", "yes"), ("No", "Yes.")], [("Yes", "maybe"), ("No", "no")]]
    assert capability.accuracy(pairs).value == 0.5
    assert capability.accuracy(pairs).n == 2
    assert capability.unparsable(pairs) == 0.25
    found = {0: {"a": pairs}, 3: {"a": [[("Yes", "yes"), ("No", "no")], pairs[1]]}}
    assert capability._change(found) == change([0.5, 0.0])


def test_rows_of_a_rollout_sum_to_one_and_one_layer_is_known() -> None:
    generator = torch.Generator().manual_seed(0)
    layers = [torch.rand(5, 5, generator=generator).tril().softmax(dim=1) for _ in range(4)]
    rolled = rollout.rolled_out(layers)
    assert all(torch.allclose(layer.sum(dim=1), torch.ones(5, dtype=torch.float64)) for layer in rolled)
    first = (layers[0].double() + torch.eye(5)) / 2
    second = (layers[1].double() + torch.eye(5)) / 2
    assert torch.allclose(rolled[1], second @ first, atol=1e-6)


def test_updates_are_added_to_the_weights_before_they_are_rounded() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    model = SimpleNamespace(get_submodule=lambda path: SimpleNamespace(weight=weight))
    # Each of them is less than half of the step from 1 to the next number in bfloat16, all together are two steps.
    small = [{"a": Change(torch.full((4, 4), 2.0**-10))} for _ in range(16)]
    rollout._add(cast(Any, SimpleNamespace(model=model)), run_of(updates=small))
    assert weight.float().unique().tolist() == [1 + 2.0**-6]
