"""Spherical k-means, and the scale at which its centroids can be trained.

papers/001, Algorithm 1 line 3 and section 7.2; faiss does the clustering.

Shape letters: S sampled contexts, D hidden size, C clusters.
"""

from __future__ import annotations

import faiss
import numpy as np
import torch
from torch import Tensor

from logitsieve.api.results import Float32
from logitsieve.index_builder.config import ScreenConfig

AGREEMENT = 0.9  # share of Gumbel samples that should pick the nearest centroid
SCALE_ROWS = 8192  # contexts on which the scale is set


def spherical_kmeans(hidden_SD: Float32, clusters: int, config: ScreenConfig, seed: int) -> Float32:
    """float32 [C, D]: unit centroids, at most `clusters` and at most one a context."""
    tiny = np.finfo(np.float32).tiny
    largest_S = np.abs(hidden_SD).max(axis=1, keepdims=True)
    unit_SD = hidden_SD / np.maximum(largest_S, tiny)  # squares of larger ones could overflow
    unit_SD /= np.maximum(np.linalg.norm(unit_SD, axis=1, keepdims=True), tiny)
    kmeans = faiss.Kmeans(
        hidden_SD.shape[1],
        min(clusters, len(hidden_SD)),
        niter=config.kmeans_iterations,
        spherical=True,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(hidden_SD),
    )
    kmeans.train(unit_SD)
    return np.asarray(kmeans.centroids, np.float32)


def agreement(hidden_SD: Tensor, centroids_CD: Tensor, scale: float) -> float:
    """The share of Gumbel samples that agree with the argmax, in expectation.

    The Gumbel trick (eq. 4) samples cluster t with probability P(t|h) of eq. 3, so a sample is
    the argmax with probability max_t P(t|h).
    """
    probability_SC = torch.softmax(scale * (hidden_SD @ centroids_CD.T), dim=1)
    return float(probability_SC.amax(dim=1).mean())


def trainable_scale(hidden_SD: Float32, centroids_CD: Float32) -> float:
    """beta such that beta * centroids agree with their Gumbel samples in AGREEMENT of the cases.

    With unit centroids nearly every sample is a random cluster, and training on those would
    destroy the clusters that k-means found.
    """
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
