"""Negatives from fixed distributions: their probabilities, and the inner sum, which is Z."""

from __future__ import annotations

from itertools import product
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from logitsieve.api.errors import InvalidRequest
from logitsieve.training import (
    NCE,
    ImportanceSoftmax,
    LogUniformSoftmax,
    SampledSoftmax,
    SoftmaxLoss,
    UniformSoftmax,
    UnigramSoftmax,
)
from logitsieve.training.autograd.batch import Targets
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.losses.frequency import (
    ClassDistribution,
    FrequencySoftmax,
    log_uniform_distribution,
    uniform_distribution,
    unigram_distribution,
)
from tests.training.loss_kit import Numbers, doubles, full_cross_entropy

D, V, M = 4, 7, 2
COUNTS = torch.tensor([5.0, 1, 90, 2, 2, 8, 1])
KINDS = pytest.mark.parametrize("kind", [UniformSoftmax, UnigramSoftmax, LogUniformSoftmax])


def made(kind: type[FrequencySoftmax], **options: Any) -> FrequencySoftmax:
    torch.manual_seed(2)
    options = {"n_sampled": M, "reduction": "none", "dtype": torch.float64, **options}
    if kind is not UniformSoftmax:
        options["class_counts"] = COUNTS
    criterion = kind(D, V, **options)
    criterion.classes.weight.data.mul_(4)
    return criterion


class Replay:
    """A source of steps that gives the one it was told."""

    def __init__(self, step: StepRng) -> None:
        self.step = step

    def next(self) -> StepRng:
        return self.step


def estimate(criterion: SoftmaxLoss, hidden: Tensor, target: Tensor, uniforms: Tensor) -> Tensor:
    """Z' of each row [B] if these are the numbers drawn."""
    criterion.random = Replay(Numbers(uniforms))  # type: ignore[assignment]
    with torch.no_grad():
        excess = criterion(hidden, target) - full_cross_entropy(criterion, hidden, target)
        z_B: Tensor = (excess + criterion.logits(hidden).logsumexp(1)).exp()
    return z_B


def middles(fixed: ClassDistribution) -> Tensor:
    """A number for each class that draws it [V]."""
    return fixed.sums - fixed.log_q.exp() / 2


@KINDS
@pytest.mark.parametrize(
    "target", [torch.tensor([2, 0]), torch.tensor([[2, 4], [0, -100]])], ids=["one", "several"]
)
def test_shared_draws_are_unbiased_by_enumeration(
    kind: type[FrequencySoftmax], target: Tensor
) -> None:
    criterion, hidden = made(kind), doubles(2, D, seed=1)
    q, numbers = criterion.distribution.log_q.exp(), middles(criterion.distribution)
    mean = torch.zeros(2, dtype=torch.float64)
    for drawn in product(range(V), repeat=M):
        ids = torch.tensor(drawn)
        mean += q[ids].prod() * estimate(criterion, hidden, target, numbers[ids])
    torch.testing.assert_close(mean, criterion.logits(hidden).detach().exp().sum(1))


@KINDS
def test_draws_of_each_row_are_unbiased_by_enumeration(kind: type[FrequencySoftmax]) -> None:
    criterion, hidden, target = (
        made(kind, per_row=True),
        doubles(2, D, seed=1),
        torch.tensor([2, 0]),
    )
    q, numbers = criterion.distribution.log_q.exp(), middles(criterion.distribution)
    mean = torch.zeros(2, dtype=torch.float64)
    for row, t in enumerate(target.tolist()):
        others = [j for j in range(V) if j != t]
        # Numbers over the whole without the target's part, as a share of the rest.
        rest = 1 - q[t]
        squeezed = torch.where(torch.arange(V) > t, numbers - q[t], numbers) / rest
        for drawn in product(others, repeat=M):
            ids = torch.tensor(drawn)
            both = squeezed[ids].repeat(2)
            mean[row] += (q[ids] / rest).prod() * estimate(criterion, hidden, target, both)[row]
    torch.testing.assert_close(mean, criterion.logits(hidden).detach().exp().sum(1))


@KINDS
def test_draws_of_a_row_are_never_its_target(kind: type[FrequencySoftmax]) -> None:
    criterion = made(kind, per_row=True, n_sampled=2000)
    drawn = criterion.propose(doubles(V, D), _single(torch.arange(V)), StepRng(key=7, step=0))
    assert not bool((drawn.ids.view(V, -1) == torch.arange(V)[:, None]).any())


def _single(classes: Tensor) -> Targets:
    return Targets(torch.arange(len(classes)), classes, len(classes), True)


def test_importance_sampling_is_unbiased_by_enumeration() -> None:
    torch.manual_seed(2)
    criterion = ImportanceSoftmax(D, V, COUNTS, n_sampled=M, reduction="none", dtype=torch.float64)
    hidden, target = doubles(2, D, seed=1), torch.tensor([2, 0])
    q, numbers = criterion.distribution.log_q.exp(), middles(criterion.distribution)
    mean = torch.zeros(2, dtype=torch.float64)
    for drawn in product(range(V), repeat=M):
        ids = torch.tensor(drawn)
        mean += q[ids].prod() * estimate(criterion, hidden, target, numbers[ids])
    torch.testing.assert_close(mean, criterion.logits(hidden).detach().exp().sum(1))


@pytest.mark.parametrize(
    ("kind", "per_row"),
    [
        (UniformSoftmax, False),
        (UnigramSoftmax, True),
        (LogUniformSoftmax, False),
        pytest.param(UniformSoftmax, True, marks=pytest.mark.exhaustive),
        pytest.param(UnigramSoftmax, False, marks=pytest.mark.exhaustive),
        pytest.param(LogUniformSoftmax, True, marks=pytest.mark.exhaustive),
    ],
)
def test_a_thousand_classes_are_estimated_without_bias(
    kind: type[FrequencySoftmax], per_row: bool
) -> None:
    classes, target = 1000, torch.tensor([0, 999, 40])
    torch.manual_seed(2)
    counts = {} if kind is UniformSoftmax else {"class_counts": 1000 / torch.arange(1.0, 1001)}
    options: dict[str, Any] = {"n_sampled": 200, "per_row": per_row, "reduction": "none", **counts}
    criterion = kind(D, classes, dtype=torch.float64, **options)
    hidden = doubles(3, D, seed=1)
    assert_unbiased(criterion, hidden, target)


def test_importance_sampling_of_a_thousand_classes_has_no_bias() -> None:
    torch.manual_seed(2)
    counts = 1000 / torch.arange(1.0, 1001)
    criterion = ImportanceSoftmax(
        D, 1000, counts, n_sampled=200, reduction="none", dtype=torch.float64
    )
    assert_unbiased(criterion, doubles(3, D, seed=1), torch.tensor([0, 999, 40]))


def assert_unbiased(criterion: SoftmaxLoss, hidden: Tensor, target: Tensor) -> None:
    """The mean of Z' over 400 steps is Z within four standard errors, which are small."""
    with torch.no_grad():
        full = full_cross_entropy(criterion, hidden, target)
        ratios = torch.stack([(criterion(hidden, target) - full).exp() for _ in range(400)])
    error = ratios.std(0) / len(ratios) ** 0.5
    assert bool((error < 0.02).all())
    assert bool(((ratios.mean(0) - 1).abs() < 4 * error).all())


def test_importance_sampling_may_be_negative() -> None:
    criterion = ImportanceSoftmax(D, V, n_sampled=1, dtype=torch.float64)
    criterion.classes.weight.data.fill_(0)
    criterion.classes.weight.data[3] = 10
    hidden = torch.ones(1, D, dtype=torch.float64)
    criterion.random = Replay(Numbers(middles(criterion.distribution)[:1]))  # type: ignore[assignment]
    assert float(criterion(hidden, torch.tensor([3])).detach()) < -30


def test_laws() -> None:
    torch.testing.assert_close(
        uniform_distribution(V).log_q.exp(), torch.full((V,), 1 / V).double()
    )
    torch.testing.assert_close(
        unigram_distribution(COUNTS, V).log_q.exp(), (COUNTS / COUNTS.sum()).double()
    )
    ranks = torch.tensor([2, 5, 0, 3, 4, 1, 6]).double()
    expected = ((ranks + 2) / (ranks + 1)).log() / torch.tensor(V + 1.0).double().log()
    torch.testing.assert_close(log_uniform_distribution(COUNTS, V).log_q.exp(), expected)
    by_id = log_uniform_distribution(None, V).log_q
    assert bool((by_id[1:] < by_id[:-1]).all())
    torch.testing.assert_close(by_id.exp().sum(), torch.ones(()).double())


def test_each_number_draws_the_class_whose_part_it_lies_in() -> None:
    fixed = unigram_distribution(COUNTS, V)
    assert fixed.draw(middles(fixed)).tolist() == list(range(V))
    ends = torch.tensor([1e-300, 1 - 1e-16], dtype=torch.float64)
    assert fixed.draw(ends).tolist() == [0, V - 1]


@pytest.mark.parametrize("counts", [torch.ones(V - 1), torch.zeros(V), torch.full((V,), torch.nan)])
def test_bad_counts_are_named(counts: Tensor) -> None:
    with pytest.raises(InvalidRequest) as caught:
        UnigramSoftmax(D, V, counts)
    assert caught.value.field == "class_counts"


@KINDS
def test_no_draws_are_refused(kind: type[FrequencySoftmax]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        made(kind, n_sampled=0)
    assert caught.value.field == "n_sampled"


def test_the_gradients_bias_falls_as_one_over_the_draws() -> None:
    rows, target = 100_000, 2
    bias = []
    for m in (8, 32):
        criterion = UniformSoftmax(
            D, V, n_sampled=m, per_row=True, dtype=torch.float64, sparse=False, bias=False
        )
        criterion.classes.weight.data = doubles(V, D, seed=6)
        hidden = doubles(1, D, seed=1).expand(rows, D)
        classes = torch.full((rows,), target)
        (estimated,) = torch.autograd.grad(criterion(hidden, classes), criterion.classes.weight)
        (exact,) = torch.autograd.grad(
            full_cross_entropy(criterion, hidden[:1], classes[:1]).sum(), criterion.classes.weight
        )
        bias.append(float((estimated - exact).norm() / exact.norm()))
    assert bias[0] > 0.005
    assert 3 < bias[0] / bias[1] < 5.5


def test_a_base_without_candidates_is_abstract() -> None:
    with pytest.raises(TypeError, match="propose"):
        SampledSoftmax(D, V)  # type: ignore[abstract]


NCE_V, NCE_M = 12, 30
NCE_COUNTS = torch.arange(NCE_V, 0, -1.0)


@pytest.mark.parametrize(
    "target", [torch.tensor([2, 0]), torch.tensor([[2, 4], [0, -100]])], ids=["one", "several"]
)
def test_each_term_is_a_binary_choice(target: Tensor) -> None:
    criterion = NCE(
        D,
        NCE_V,
        NCE_COUNTS,
        n_sampled=NCE_M,
        dtype=torch.float64,
        reduction="none",
        sparse=False,
    )
    hidden = doubles(2, D, seed=1).requires_grad_()
    noise = criterion.distribution.draw(criterion.random.next().uniforms(NCE_M))
    assert len(set(noise.tolist())) < NCE_M
    criterion.random.step = 0
    log_mq = (NCE_M * NCE_COUNTS / NCE_COUNTS.sum()).log().double()
    y_BV = criterion.logits(hidden) - log_mq
    several = target.view(2, -1)
    mine = [row[row != -100] for row in several]
    data = torch.stack([logsigmoid(y_BV[b, ids]).mean() for b, ids in enumerate(mine)])
    expected = -data - logsigmoid(-y_BV[:, noise]).sum(1)
    losses = criterion(hidden, target)
    torch.testing.assert_close(losses, expected)
    inputs = [hidden, *criterion.parameters()]
    got, wanted = (torch.autograd.grad(x.sum(), inputs) for x in (losses, expected))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_biases_start_where_z_is_one() -> None:
    criterion = NCE(D, NCE_V, NCE_COUNTS)
    assert criterion.classes.bias is not None
    torch.testing.assert_close(criterion.classes.bias.detach(), torch.full((NCE_V, 1), -log(NCE_V)))
    z = criterion.logits(torch.zeros(1, D)).exp().sum()
    torch.testing.assert_close(z, torch.ones(()))


def test_it_learns_the_frequencies_and_a_z_of_one() -> None:
    criterion = NCE(1, NCE_V, n_sampled=200, dtype=torch.float64)
    frequencies = NCE_COUNTS.double() / NCE_COUNTS.sum()
    optimizer = torch.optim.Adagrad(criterion.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(0)
    zeros = torch.zeros(500, 1, dtype=torch.float64)
    for _ in range(150):
        optimizer.zero_grad()
        criterion(
            zeros, torch.multinomial(frequencies, 500, replacement=True, generator=generator)
        ).backward()
        optimizer.step()
    learnt = criterion.logits(zeros[:1]).detach().exp()[0]
    torch.testing.assert_close(learnt, frequencies, atol=0.015, rtol=0.1)
    assert abs(float(learnt.sum()) - 1) < 0.05
