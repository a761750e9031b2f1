"""The softmaxes that are measured, and the heads over them, fitted on the GPU.

The screen is spherical k-means with lists of all labels that a cluster's contexts had: plainer than
what the builder learns, so its precision is measured beside its time.

Shape letters: V vocabulary, D hidden size, N contexts, C clusters, K labels of a context.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.race.synthetic import generate
from logitsieve.api.results import Float32
from logitsieve.gpu.heads import gpu_heads
from logitsieve.gpu.heads.base import GpuHead
from logitsieve.heads import HEADS, Softmax
from logitsieve.heads._base.spec import Arrays
from logitsieve.index_builder.fit.certified import Widths, encode, narrow_rotation
from logitsieve.kernels.sketch.sketch import EXTRA
from logitsieve.utils.floats import narrowed

DEEP = 20  # labels of a context that its cluster's list must hold
ITERATIONS = 12
CODED = Widths(
    64, 256
)  # bytes of a row of the sketch: coarse ones, which a GPU does not read, and fine


class Shape(NamedTuple):
    """A vocabulary and a hidden size."""

    vocab_size: int
    dim: int


class FitResult(NamedTuple):
    """A softmax of a type, its heads on the GPU, and contexts that decided nothing."""

    softmax: Softmax
    heads: dict[str, GpuHead]
    test: Float32


def make(shape: Shape, dtype: str, contexts: int, clusters: int, device: torch.device) -> FitResult:
    """W with the statistics of a real language model, stored as `dtype`."""
    made = generate(shape.vocab_size, shape.dim)
    softmax = Softmax(narrowed(made.weight, dtype), made.bias)
    coded = min(shape.dim, CODED.fine - EXTRA)
    directions, stretch = narrow_rotation(softmax, made.fit[:20_000], coded)
    parts: dict[str, Arrays] = {"sketch": encode(softmax, directions, CODED, stretch_D=stretch)}
    knobs: dict[str, dict[str, float]] = {"exact": {}, "certified": {}}
    exact = gpu_heads(HEADS, softmax, parts, knobs, 1, device)["exact"]
    parts["screen"] = lists(exact, torch.from_numpy(made.fit[:contexts]).to(device), clusters)
    heads = gpu_heads(HEADS, softmax, parts, {**knobs, "screen": {}}, 1, device)
    return FitResult(softmax, heads, made.test[:contexts])


def lists(exact: GpuHead, fit: Tensor, clusters: int) -> dict[str, np.ndarray]:
    """The arrays of a screen of so many clusters over the contexts `fit` [N, D]."""
    centroids, owners = k_means(fit, clusters)
    labels = exact.topk(fit, DEEP).ids
    owned = owners[:, None].expand(-1, DEEP)
    pairs = torch.stack([owned.flatten(), torch.as_tensor(labels).flatten()])
    own, ids = np.unique(pairs.cpu().numpy(), axis=1)
    offsets = np.searchsorted(own, np.arange(len(centroids) + 1))
    return {
        "centroids": centroids.cpu().numpy(),
        "offsets": offsets.astype(np.int32),
        "ids": ids.astype(np.int32),
    }


def k_means(rows: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """Centroids [C, D] of norm 1, none of them empty, and the cluster of each row [N]."""
    unit = normalize(rows.float())
    picked = torch.randperm(len(unit), generator=torch.Generator().manual_seed(0))[:clusters]
    centroids = unit[picked.to(unit.device)]
    for _ in range(ITERATIONS):
        used, owners = _owners(unit, centroids)
        sums = torch.zeros((len(used), unit.shape[1]), device=unit.device)
        centroids = normalize(sums.index_add_(0, owners, unit))
    used, owners = _owners(unit, centroids)
    return centroids[used], owners


def _owners(unit: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The centroids that have rows, and for each row which of those is its."""
    nearest = (unit @ centroids.T).argmax(1)
    used = nearest.bincount(minlength=len(centroids)).nonzero()[:, 0]
    return used, torch.searchsorted(used, nearest)
