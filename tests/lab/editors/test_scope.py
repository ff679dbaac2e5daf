"""ScopeEdit's gate."""

import math

import pytest
import torch

from more_lab.editors.scope import gate


def test_the_gate_follows_its_formulas() -> None:
    u, o = torch.tensor([3.0, 0.0]), torch.tensor([1.2, 1.6])  # lengths 3 and 2, cosine 0.6
    found = gate(u, o, tau=0.2, beta=10.0)
    gamma = 1 / (1 + math.exp(-10.0 * (0.6 - 0.2))) * 2 / 3
    assert found is not None
    assert found.text == pytest.approx(gamma * 2 / 5, rel=1e-6)
    q = gamma * 3 / 5 * u.double() + gamma * 2 / 5 * o.double()
    torch.testing.assert_close(found.key, q / q.norm(), rtol=1e-6, atol=1e-7)
    assert float(found.key.norm()) == pytest.approx(1.0)


def test_it_opens_with_the_cosine_and_with_equal_lengths() -> None:
    u, o = torch.tensor([1.0, 0.0]), torch.tensor([0.6, 0.8])

    def opened(o: torch.Tensor, tau: float) -> float:
        found = gate(u, o, tau, 10.0)
        assert found is not None
        return found.text

    assert opened(o, 0.2) > opened(o, 0.6) > opened(-o, 0.6) > 0.0
    assert opened(u, -1.0) == pytest.approx(0.5, rel=1e-6), "half of it is the image's"
    assert opened(u, 0.0) > opened(100 * u, 0.0)


@pytest.mark.parametrize("length", [0.0, 1e-7])
def test_it_is_closed_where_either_side_has_no_part_in_the_basis(length: float) -> None:
    some, none = torch.tensor([1.0, 2.0]), torch.tensor([length, 0.0])
    assert gate(some, none, 0.2, 10.0) is None
    assert gate(none, some, 0.2, 10.0) is None
