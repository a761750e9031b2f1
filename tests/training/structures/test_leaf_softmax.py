"""The batch's distribution within leaves, against its definition in float64."""

from __future__ import annotations

import pytest
import torch

from logitsieve.training.autograd.batch import Targets
from logitsieve.training.autograd.classes import LogitForm
from logitsieve.training.losses.kernel_softmax import LeafSoftmax, draw_by
from tests.training.loss_kit import doubles

V, D = 7, 5
MEMBERS = torch.tensor([[0, 1, 2], [3, 4, 5], [6, V, V]])  # V: a place without a class
TARGETS = Targets(torch.arange(4), torch.tensor([0, 6, 3, 3]), 4, True)


@pytest.mark.parametrize("form", [LogitForm(), LogitForm(absolute=True), LogitForm(scale=2.0)])
def test_it_is_the_mean_of_the_rows_distributions(form: LogitForm) -> None:
    """Every leaf drawn once, all equally likely: Z^ is 3 Z and the target's term."""
    hidden, weight = doubles(4, D), doubles(V, D, seed=1)
    if form.scale is not None:
        hidden = form.scale * torch.nn.functional.normalize(hidden, dim=-1)
    log_q = torch.full((3,), 1 / 3, dtype=torch.float64).log()
    leaf_softmax = LeafSoftmax(hidden, TARGETS, weight, form)
    masses = leaf_softmax.probabilities(MEMBERS, torch.arange(3), log_q)
    rows = weight if form.scale is None else torch.nn.functional.normalize(weight, dim=-1)
    x_BV = hidden @ rows.T
    x_BV = x_BV.abs() if form.absolute else x_BV
    z_B = x_BV.exp().sum(1) + x_BV[TARGETS.rows, TARGETS.classes].exp()
    expected = torch.zeros(3, 3, dtype=torch.float64)
    for leaf, members in enumerate(MEMBERS):
        classes = members[members < V]
        expected[leaf, : len(classes)] = (x_BV[:, classes].exp() / z_B[:, None]).sum(0)
    torch.testing.assert_close(masses, expected / expected.sum(1, keepdim=True))


def test_a_place_is_drawn_by_inversion_and_never_one_without_mass() -> None:
    masses = torch.tensor([[0.0, 0.25, 0.75, 0.0]]).double().expand(5, 4)
    uniforms = torch.tensor([1e-9, 0.2, 0.3, 0.9, 1 - 1e-16]).double()
    assert draw_by(masses, uniforms).tolist() == [1, 1, 2, 2, 2]


def test_places_without_mass_are_never_drawn() -> None:
    probabilities = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]] * 4).double()
    uniforms = torch.tensor([1e-17, 0.4999, 0.5001, 1 - 1e-16]).double()
    assert draw_by(probabilities, uniforms).tolist() == [1, 1, 3, 3]
