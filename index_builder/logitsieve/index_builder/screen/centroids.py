"""Centroids of a screen: a scale at which they can be trained, and the training.

Chen et al. 2019, section 3: eq. 3-5 (straight-through Gumbel-softmax) and eq. 6, 8 (the loss, with
fixed candidate lists), in the closed form of docs/building.md, which needs no target of length V.
"""

import math

import torch
from torch import Tensor
from torch.autograd import backward

from logitsieve.api.results import Float32
from logitsieve.index_builder.config import ScreenConfig

AGREEMENT = 0.9  # share of Gumbel samples that should pick the nearest centroid
SCALE_ROWS = 8192  # contexts on which the scale is set
AVERAGED = 0.99  # share of the past in the moving average of candidates a row


def agreement(hidden_SD: Tensor, centroids_CD: Tensor, scale: float) -> float:
    """Return the expected share of Gumbel samples (eq. 4) that pick the argmax, max_t P(t|h)."""
    probability_SC = torch.softmax(scale * (hidden_SD @ centroids_CD.T), dim=1)
    return float(probability_SC.amax(dim=1).mean())


def trainable_scale(hidden_SD: Float32, centroids_CD: Float32) -> float:
    stride = max(1, len(hidden_SD) // SCALE_ROWS)
    some_SD, centroids = torch.from_numpy(hidden_SD[::stride]), torch.from_numpy(centroids_CD)
    largest = float((some_SD @ centroids.T).abs().max())
    if len(centroids) == 1 or largest == 0:
        return 1.0
    low, high = 0.0, 1e4 / largest
    for _ in range(40):
        middle = (low + high) / 2
        if agreement(some_SD, centroids, middle) < AGREEMENT:
            low = middle
        else:
            high = middle
    return high


def straight_through(scores_BC: Tensor, gumbel_BC: Tensor) -> Tensor:
    """pbar [B, C]: one-hot of the sampled cluster, with gradients of eq. 5 at temperature 1."""
    p_BC = torch.softmax(scores_BC + gumbel_BC, dim=1)
    one_hot_BC = torch.zeros_like(p_BC).scatter_(1, p_BC.argmax(dim=1, keepdim=True), 1.0)
    return one_hot_BC + p_BC - p_BC.detach()


def cluster_loss(
    labels_BK: Tensor, table_VC: Tensor, sizes_C: Tensor, waste_weight: float
) -> Tensor:
    """l [B, C], eq. 6 of every row under every cluster; table_VC is c transposed, sizes_C sums."""
    hits_BC = table_VC[labels_BK].sum(dim=1, dtype=torch.float32)
    return (labels_BK.shape[1] - hits_BC) + waste_weight * (sizes_C - hits_BC)


def objective(
    pbar_BC: Tensor, loss_BC: Tensor, average: Tensor, budget: float, overrun_weight: float
) -> Tensor:
    """Eq. 8 on a batch: sum_i sum_t pbar_it l_it + gamma max(0, Lbar - B), `average` being Lbar."""
    return (pbar_BC * loss_BC).sum() + overrun_weight * torch.relu(average - budget)


class MovingAverage:
    """Lbar: a moving average in its value, with the gradient of the newest batch in full."""

    def __init__(self) -> None:
        self._value: Tensor | None = None

    def add(self, batch_mean: Tensor) -> Tensor:
        new = batch_mean.detach()
        self._value = new if self._value is None else AVERAGED * self._value + (1 - AVERAGED) * new
        return self._value + (batch_mean - new)


class Adam:
    """Kingma and Ba 2015, Algorithm 1, for one tensor; torch.optim takes three seconds to load."""

    def __init__(self, parameter: Tensor, lr: float) -> None:
        self._parameter, self._lr, self._steps = parameter, lr, 0
        self._mean, self._square = torch.zeros_like(parameter), torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, decay: float = 0.9, decay2: float = 0.999, eps: float = 1e-8) -> None:
        gradient = self._parameter.grad
        assert gradient is not None
        self._steps += 1
        self._mean.lerp_(gradient, 1 - decay)
        self._square.mul_(decay2).addcmul_(gradient, gradient, value=1 - decay2)
        root = self._square.sqrt() / math.sqrt(1 - decay2**self._steps)
        size = self._lr / (1 - decay**self._steps)
        self._parameter.addcdiv_(self._mean, root.add_(eps), value=-size)


def train_centroids(
    centroids_CD: Tensor,
    hidden_SD: Tensor,
    labels_SK: Tensor,
    table_VC: Tensor,
    budget: float | None,
    config: ScreenConfig,
    seed: int,
) -> Tensor:
    """Return v after one round: `config.steps` steps of Adam, its rate in centroid sizes."""
    generator = torch.Generator().manual_seed(seed)
    v_CD = centroids_CD.clone().requires_grad_()
    size = float(centroids_CD.square().mean().sqrt())
    adam = Adam(v_CD, config.learning_rate * size)
    sizes_C = table_VC.sum(dim=0, dtype=torch.float32)
    average = MovingAverage()
    for _ in range(config.steps):
        rows = torch.randint(len(hidden_SD), (config.batch_rows,), generator=generator)
        scores_BC = hidden_SD[rows] @ v_CD.T
        noise_BC = torch.empty_like(scores_BC).exponential_(generator=generator)
        pbar_BC = straight_through(scores_BC, -noise_BC.clamp_min(1e-30).log())
        loss = objective(
            pbar_BC,
            cluster_loss(labels_SK[rows], table_VC, sizes_C, config.waste_weight),
            average.add((pbar_BC @ sizes_C).mean()),
            math.inf if budget is None else budget,
            config.overrun_weight,
        )
        v_CD.grad = None
        backward(loss)
        adam.step()
    return v_CD.detach()
