"""What the papers compare with: EXP, importance sampling, NCE, D-softmax.

TopK is tested with the searches, in proposals/test_proposal.py, and Quadratic with the kernels, in
proposals/test_kernel.py.
"""

from itertools import product
from math import log
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from logitsieve.training import NCE, DSoftmax, Exp, ImportanceSoftmax, SampledSoftmax
from logitsieve.training.autograd.batch import StepRng
from tests.oracle import chi_square_p
from tests.refusals import refused
from tests.training.loss_kit import Numbers, doubles, full_cross_entropy, middles, proposed

D, V = 4, 30
SEVERAL = torch.tensor([[3, 1, 2], [0, -100, -100], [-100] * 3, [29, 8, -100]])


def made(n_sampled: int, **options: Any) -> SampledSoftmax:
    options = {"dtype": torch.float64, "reduction": "none", "sparse": False, **options}
    criterion = SampledSoftmax(D, V, Exp(n_sampled=n_sampled), **options)
    criterion.classes.weight.data = doubles(V, D, seed=6)
    return criterion


@pytest.mark.parametrize("n_sampled", [1, 2, 50])
@pytest.mark.parametrize(
    "target", [torch.tensor([3, 0, -100, 29]), SEVERAL], ids=["one", "several"]
)
@pytest.mark.parametrize("options", [{}, {"scale": 6.0}, {"absolute": True}])
def test_a_draw_is_the_full_loss(n_sampled: int, target: Tensor, options: dict[str, Any]) -> None:
    criterion, hidden_states = made(n_sampled, **options), doubles(4, D, seed=1)
    expected = full_cross_entropy(criterion, hidden_states, target).detach()
    for _ in range(5):
        torch.testing.assert_close(criterion(hidden_states, target).detach(), expected)


def test_the_gradient_is_the_full_one_in_the_mean() -> None:
    rows = 20_000
    criterion, hidden_states = (
        made(3),
        doubles(1, D, seed=1).expand(rows, D).clone().requires_grad_(),
    )
    target = torch.full((rows,), 4)
    full = full_cross_entropy(criterion, hidden_states[:1], target[:1])
    (each,) = torch.autograd.grad(criterion(hidden_states, target).sum(), hidden_states)
    (exact,) = torch.autograd.grad(full.sum(), hidden_states)
    error = (each.mean(0) - exact[0]).abs()
    assert bool((error < 4 * each.std(0) / rows**0.5).all())
    assert bool((each.std(0) > 0.01).all())


def test_draws_follow_the_softmax_without_the_targets() -> None:
    criterion, hidden_states = made(100_000), doubles(1, D, seed=1)
    torch.nn.init.constant_(criterion.get_parameter("classes.bias"), 700.0)  # e^1400 is infinite
    drawn = proposed(criterion, hidden_states, torch.tensor([[3, 7]]))
    assert cast(Any, drawn).offsets.tolist() == [0, 100_000]
    x_V = criterion.logits(hidden_states).detach()[0]
    x_V[[3, 7]] = -torch.inf
    counts = torch.bincount(drawn.ids, minlength=V)
    assert chi_square_p(counts.numpy(), x_V.softmax(0).numpy()) > 1e-4


def test_rows_in_chunks_draw_what_they_would_draw_together() -> None:
    hidden_states, target, criterion = doubles(5, D, seed=1), torch.arange(5), made(4)
    step = criterion.random.next()
    whole = proposed(criterion, hidden_states, target, step)
    assert isinstance(criterion.proposal, Exp)
    criterion.proposal.logits_at_once = 2 * V
    parts = proposed(criterion, hidden_states, target, step)
    assert torch.equal(whole.ids, parts.ids)
    torch.testing.assert_close(whole.log_weights, parts.log_weights)


IS_V = 7
IS_COUNTS = torch.tensor([5.0, 1, 90, 2, 2, 8, 1])


def importance(counts: Tensor | None, n_sampled: int) -> ImportanceSoftmax:
    torch.manual_seed(2)
    options: dict[str, Any] = {"reduction": "none", "dtype": torch.float64}
    return ImportanceSoftmax(D, IS_V, counts, n_sampled=n_sampled, **options)


def test_importance_sampling_is_unbiased_and_may_be_negative() -> None:
    criterion = importance(IS_COUNTS, 2)
    hidden_states, target = doubles(2, D, seed=1), torch.tensor([2, 0])
    q, numbers = criterion.proposal.log_q.exp(), middles(criterion.proposal)
    x_BV = criterion.logits(hidden_states).detach()
    mean = torch.zeros(2, dtype=torch.float64)
    for ids in map(list, product(range(IS_V), repeat=2)):
        criterion.random = Replay(Numbers(numbers[ids]))  # type: ignore[assignment]
        loss = criterion(hidden_states, target).detach()
        mean += q[ids].prod() * (loss + x_BV[[0, 1], target]).exp()
    torch.testing.assert_close(mean, x_BV.exp().sum(1))
    criterion = importance(None, 1)
    criterion.classes.weight.data.fill_(0)
    criterion.classes.weight.data[3] = 10
    losses = []
    for drawn in (3, 0):
        numbers = middles(criterion.proposal)[drawn : drawn + 1]
        criterion.random = Replay(Numbers(numbers))  # type: ignore[assignment]
        losses.append(float(criterion(torch.ones(1, D).double(), torch.tensor([3])).detach()))
    assert losses[0] == pytest.approx(log(IS_V))
    assert losses[1] < -30


class Replay:
    """A source of steps that gives the one it was told."""

    def __init__(self, step: StepRng) -> None:
        self.step = step

    def next(self) -> StepRng:
        return self.step


NCE_V, NCE_M = 12, 30
NCE_COUNTS = torch.arange(NCE_V, 0, -1.0)


@pytest.mark.parametrize(
    "target", [torch.tensor([2, 0]), torch.tensor([[2, 4], [0, -100]])], ids=["one", "several"]
)
def test_each_term_is_a_binary_choice(target: Tensor) -> None:
    criterion = NCE(
        D, NCE_V, NCE_COUNTS, n_sampled=NCE_M, dtype=torch.float64, reduction="none", sparse=False
    )
    hidden_states = doubles(2, D, seed=1).requires_grad_()
    noise = criterion.proposal.shared(criterion.random.next()).ids
    assert len(set(noise.tolist())) < NCE_M
    criterion.random.step = 0
    log_mq = (NCE_M * NCE_COUNTS / NCE_COUNTS.sum()).log().double()
    y_BV = criterion.logits(hidden_states) - log_mq
    several = target.view(2, -1)
    mine = [row[row != -100] for row in several]
    data = torch.stack([logsigmoid(y_BV[b, ids]).mean() for b, ids in enumerate(mine)])
    expected = -data - logsigmoid(-y_BV[:, noise]).sum(1)
    losses = criterion(hidden_states, target)
    torch.testing.assert_close(losses, expected)
    inputs = [hidden_states, *criterion.parameters()]
    got, wanted = (torch.autograd.grad(x.sum(), inputs) for x in (losses, expected))
    torch.testing.assert_close(got, wanted)


def test_nce_starts_and_ends_with_a_z_of_one() -> None:
    criterion = NCE(D, NCE_V, NCE_COUNTS)
    assert criterion.classes.bias is not None
    torch.testing.assert_close(criterion.classes.bias.detach(), torch.full((NCE_V, 1), -log(NCE_V)))
    z = criterion.logits(torch.zeros(1, D)).exp().sum()
    torch.testing.assert_close(z, torch.ones(()))
    criterion = NCE(1, NCE_V, n_sampled=200, dtype=torch.float64)
    frequencies = NCE_COUNTS.double() / NCE_COUNTS.sum()
    optimizer = torch.optim.Adagrad(criterion.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(0)
    zeros = torch.zeros(500, 1, dtype=torch.float64)
    for _ in range(150):
        optimizer.zero_grad()
        drawn = torch.multinomial(frequencies, 500, replacement=True, generator=generator)
        criterion(zeros, drawn).backward()
        optimizer.step()
    learnt = criterion.logits(zeros[:1]).detach().exp()[0]
    torch.testing.assert_close(learnt, frequencies, atol=0.015, rtol=0.1)
    assert abs(float(learnt.sum()) - 1) < 0.05


BLOCK_V = 10
BLOCK_D = 6
BLOCKS = [(2, 3), (3, 2), (5, 1)]
COUNTS = torch.tensor([1.0, 9, 3, 4, 5, 8, 2, 6, 7, 10])


@pytest.mark.parametrize("options", [{}, {"scale": 5.0}, {"absolute": True}, {"bias": False}])
def test_logits_are_those_of_the_matrix(options: dict[str, Any]) -> None:
    criterion = DSoftmax(BLOCK_D, BLOCK_V, COUNTS, blocks=BLOCKS, dtype=torch.float64, **options)
    weight, bias = criterion.classes.weight, criterion.classes.bias
    hidden_states = criterion.prepare(doubles(4, BLOCK_D, seed=1))
    expected = criterion.classes.form.logits(hidden_states, weight, bias)
    torch.testing.assert_close(criterion.logits(doubles(4, BLOCK_D, seed=1)), expected)


def test_d_softmax_gives_frequent_classes_more_dimensions() -> None:
    criterion = DSoftmax(BLOCK_D, BLOCK_V, COUNTS, blocks=BLOCKS)
    weight = criterion.export().weight
    seen = [tuple(row.nonzero()[:, 0].tolist()) for row in weight]
    parts = {9: (0, 1, 2), 1: (0, 1, 2), 5: (3, 4), 8: (3, 4), 7: (3, 4)}
    assert seen == [parts.get(i, (5,)) for i in range(BLOCK_V)]
    assert sum(p.numel() for p in criterion.parameters()) == BLOCK_V + sum(n * d for n, d in BLOCKS)
    weight = DSoftmax(BLOCK_D, BLOCK_V, blocks=BLOCKS).export().weight
    assert bool((weight[:2, 3:] == 0).all())
    assert bool((weight[5:, :5] == 0).all())
    numbers = sum(p.numel() for p in DSoftmax(8, 90).parameters())
    assert numbers == 90 + 9 * 4 + 27 * 2 + 54 * 2
    other = DSoftmax(BLOCK_D, BLOCK_V, blocks=BLOCKS)
    other.load_state_dict(criterion.state_dict())
    assert torch.equal(other.export().weight, criterion.export().weight)
    criterion = DSoftmax(BLOCK_D, BLOCK_V, COUNTS, dtype=torch.float64, reduction="none")
    hidden_states, target = doubles(4, BLOCK_D, seed=1), torch.tensor([3, 9, -100, 0])
    expected = full_cross_entropy(criterion, hidden_states, target)
    torch.testing.assert_close(criterion(hidden_states, target), expected)
    with refused("embedding"):
        DSoftmax(BLOCK_D, BLOCK_V).tie(torch.nn.Embedding(BLOCK_V, D))


@pytest.mark.parametrize(
    "blocks",
    [[(10, 5)], [(9, 6)], [(10, 6), (0, 0)], [], [10, 6], [(10,)], [("a", 6)], [(10.0, 6)], ["ab"]],
)
def test_blocks_that_do_not_fill_the_matrix_are_refused(blocks: Any) -> None:
    with refused("blocks"):
        DSoftmax(BLOCK_D, BLOCK_V, blocks=blocks)
