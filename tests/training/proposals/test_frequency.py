from itertools import product

import pytest
import torch
from torch import Tensor

from logitsieve.training import FrequencyProposal, SampledSoftmax
from logitsieve.training.proposals.frequency import (
    log_uniform_weights,
    uniform_weights,
    unigram_weights,
)
from tests.refusals import refused
from tests.training.loss_kit import (
    Numbers,
    doubles,
    estimates,
    full_cross_entropy,
    middles,
    proposed,
    rest_of,
)

D, V, M = 4, 7, 2
COUNTS = torch.tensor([5.0, 1, 90, 2, 2, 8, 1])
WEIGHTS = {
    "uniform": uniform_weights(V),
    "unigram": unigram_weights(V, COUNTS),
    "log-uniform": log_uniform_weights(V, COUNTS),
}
EVERY = pytest.mark.parametrize("name", WEIGHTS)


def made(weights: Tensor, per_row: bool = False, n_sampled: int = M) -> SampledSoftmax:
    torch.manual_seed(2)
    proposal = FrequencyProposal(weights, n_sampled=n_sampled, per_row=per_row)
    criterion = SampledSoftmax(D, len(weights), proposal, reduction="none", dtype=torch.float64)
    criterion.classes.weight.data.mul_(4)
    return criterion


def law(criterion: SampledSoftmax) -> FrequencyProposal:
    assert isinstance(criterion.proposal, FrequencyProposal)
    return criterion.proposal


@EVERY
@pytest.mark.parametrize(
    "target", [torch.tensor([2, 0]), torch.tensor([[2, 4], [0, -100]])], ids=["one", "several"]
)
def test_shared_draws_are_unbiased_by_enumeration(name: str, target: Tensor) -> None:
    criterion, hidden_states = made(WEIGHTS[name]), doubles(2, D, seed=1)
    q, numbers = law(criterion).log_q.exp(), middles(law(criterion))
    mean = torch.zeros(2, dtype=torch.float64)
    for ids in map(list, product(range(V), repeat=M)):
        drawn = proposed(criterion, hidden_states, target, Numbers(numbers[ids]))
        mean += q[ids].prod() * estimates(criterion, hidden_states, target, drawn)
    torch.testing.assert_close(mean, rest_of(criterion, hidden_states, target))


@EVERY
def test_draws_of_each_row_are_unbiased_by_enumeration(name: str) -> None:
    criterion, hidden_states = made(WEIGHTS[name], per_row=True), doubles(2, D, seed=1)
    target = torch.tensor([2, 0])
    q, numbers = law(criterion).log_q.exp(), middles(law(criterion))
    mean = torch.zeros(2, dtype=torch.float64)
    for row, t in enumerate(target.tolist()):
        # Numbers over the whole without the target's part, as a share of the rest.
        rest = 1 - q[t]
        squeezed = torch.where(torch.arange(V) > t, numbers - q[t], numbers) / rest
        for ids in map(list, product([j for j in range(V) if j != t], repeat=M)):
            drawn = proposed(criterion, hidden_states, target, Numbers(squeezed[ids].repeat(2)))
            found = estimates(criterion, hidden_states, target, drawn)[row]
            mean[row] += (q[ids] / rest).prod() * found
    torch.testing.assert_close(mean, rest_of(criterion, hidden_states, target))


@EVERY
def test_draws_of_a_row_are_never_its_target(name: str) -> None:
    criterion = made(WEIGHTS[name], per_row=True, n_sampled=2000)
    drawn = proposed(criterion, doubles(V, D), torch.arange(V))
    assert not bool((drawn.ids.view(V, -1) == torch.arange(V)[:, None]).any())


def test_laws_and_the_class_that_each_number_draws() -> None:
    def q(weights: Tensor) -> Tensor:
        return law(made(weights)).log_q.exp()

    torch.testing.assert_close(q(uniform_weights(V)), torch.full((V,), 1 / V).double())
    torch.testing.assert_close(q(unigram_weights(V, COUNTS)), (COUNTS / COUNTS.sum()).double())
    ranks = torch.tensor([2, 5, 0, 3, 4, 1, 6]).double()
    expected = ((ranks + 2) / (ranks + 1)).log() / torch.tensor(V + 1.0).double().log()
    torch.testing.assert_close(q(log_uniform_weights(V, COUNTS)), expected)
    by_id = q(log_uniform_weights(V))
    assert bool((by_id[1:] < by_id[:-1]).all())
    torch.testing.assert_close(by_id.sum(), torch.ones(()).double())
    fixed = law(made(COUNTS))
    assert fixed.draw(middles(fixed)).tolist() == list(range(V))
    ends = torch.tensor([1e-300, 1 - 1e-16], dtype=torch.float64)
    assert fixed.draw(ends).tolist() == [0, V - 1]


@pytest.mark.parametrize("counts", [torch.ones(V - 1), torch.zeros(V), torch.full((V,), torch.nan)])
def test_bad_weights_are_named(counts: Tensor) -> None:
    for call, field in (
        (lambda: SampledSoftmax(D, V, FrequencyProposal(counts)), "weights"),
        (lambda: unigram_weights(V, counts), "class_counts"),
        (lambda: unigram_weights(V), "class_counts"),
    ):
        with refused(field):
            call()


def test_the_gradients_bias_falls_as_one_over_the_draws() -> None:
    rows, target = 100_000, 2
    bias = []
    for m in (8, 32):
        proposal = FrequencyProposal(uniform_weights(V), n_sampled=m, per_row=True)
        criterion = SampledSoftmax(D, V, proposal, dtype=torch.float64, sparse=False, bias=False)
        criterion.classes.weight.data = doubles(V, D, seed=6)
        hidden_states = doubles(1, D, seed=1).expand(rows, D)
        classes = torch.full((rows,), target)
        full = full_cross_entropy(criterion, hidden_states[:1], classes[:1]).sum()
        estimated, exact = (
            torch.autograd.grad(loss, criterion.classes.weight)[0]
            for loss in (criterion(hidden_states, classes), full)
        )
        bias.append(float((estimated - exact).norm() / exact.norm()))
    assert bias[0] > 0.005
    assert 3 < bias[0] / bias[1] < 5.5
