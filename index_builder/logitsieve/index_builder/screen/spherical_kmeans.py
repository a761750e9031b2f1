"""Spherical k-means over the sampled contexts.

Chen et al. 2019, Algorithm 1 line 3 and section 7.2; Dhillon, Modha 2001, Concept Decompositions.
"""

from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Float64, Int64
from logitsieve.index_builder.config import ScreenConfig
from logitsieve.index_builder.workers import Shared, Workers

BLOCK_ROWS = 8192
TINY = np.finfo(np.float32).tiny
NUDGE = np.float32(1 / 1024)  # relative change of coordinates that splits a cluster


class Sample(NamedTuple):
    rows: Float32  # [S, D]
    norms: Float32


def spherical_kmeans(
    hidden_SD: Float32,
    clusters: int,
    config: ScreenConfig,
    seed: int,
    workers: Workers | None = None,
) -> Float32:
    """Return unit centroids [C, D]: `clusters`, but at most one for each context.

    They start at contexts. One that loses all of its contexts takes half of a large cluster.
    """
    workers, random = workers or Workers(), np.random.default_rng(seed)
    chosen = random.permutation(len(hidden_SD))[: min(clusters, len(hidden_SD))]
    sample = Sample(hidden_SD, norms_of(hidden_SD))
    shared = Shared(sample, Sample, tuple(sample))
    centroids_CD = _unit(hidden_SD[chosen] / sample.norms[chosen, None])
    for _ in range(config.kmeans_iterations):
        sums_CD, counts_C = np.zeros(centroids_CD.shape), np.zeros(len(centroids_CD), np.int64)
        calls = ((shared, start, centroids_CD) for start in range(0, len(hidden_SD), BLOCK_ROWS))
        for used, sums, counts in workers.map(sum_directions, calls):
            sums_CD[used] += sums
            counts_C[used] += counts
        directions_CD = _unit(sums_CD).astype(np.float32)
        # A centroid stays where its contexts' directions cancel out.
        moved = counts_C > 0
        moved[moved] = np.abs(directions_CD[moved]).max(axis=1) > 0
        centroids_CD = np.where(moved[:, None], directions_CD, centroids_CD)
        _split(centroids_CD, counts_C, random)
    return centroids_CD


def norms_of(hidden_SD: Float32) -> Float32:
    """Return lengths [S], at least TINY. Rows are scaled, since squares could overflow."""
    largest_S = np.maximum(np.abs(hidden_SD).max(axis=1), TINY)
    norms_S = np.empty(len(hidden_SD), np.float32)
    for start in range(0, len(hidden_SD), BLOCK_ROWS):
        here = slice(start, start + BLOCK_ROWS)
        norms_S[here] = np.linalg.norm(hidden_SD[here] / largest_S[here, None], axis=1)
    lengths_S: Float32 = np.maximum(norms_S * largest_S, TINY)
    return lengths_S


def sum_directions(
    sample: Sample, start: int, centroids_CD: Float32
) -> tuple[Int64, Float64, Int64]:
    rows_RD = sample.rows[start : start + BLOCK_ROWS]
    cluster_R = (rows_RD @ centroids_CD.T).argmax(axis=1)
    order_R = np.argsort(cluster_R, kind="stable")
    used, first = np.unique(cluster_R[order_R], return_index=True)
    norms_R = sample.norms[start : start + BLOCK_ROWS]
    directions_RD = rows_RD[order_R] / norms_R[order_R, None]
    sums = np.add.reduceat(directions_RD, first, axis=0).astype(np.float64)
    return used, sums, np.diff(first, append=len(order_R))


def _unit(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), TINY))


def _split(centroids_CD: Float32, counts_C: Int64, random: np.random.Generator) -> None:
    for empty in np.flatnonzero(counts_C == 0):
        spare_C = np.maximum(counts_C - 1, 0)
        if not spare_C.sum():
            return
        large = int(random.choice(len(counts_C), p=spare_C / spare_C.sum()))
        nudge_D = np.where(np.arange(centroids_CD.shape[1]) % 2, -NUDGE, NUDGE)
        pair = np.stack([centroids_CD[large] * (1 + nudge_D), centroids_CD[large] * (1 - nudge_D)])
        centroids_CD[empty], centroids_CD[large] = _unit(pair)
        counts_C[empty] = counts_C[large] // 2
        counts_C[large] -= counts_C[empty]
