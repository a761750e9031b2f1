"""Spherical k-means by faiss: clusters of vectors by their largest product with a unit centroid.

papers/001, Algorithm 1 line 3 and section 7.2; Dhillon and Modha 2001, "Concept Decompositions".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from logitsieve.api.results import Float32

TINY = np.finfo(np.float32).tiny


def spherical_kmeans(hidden_SD: Float32, clusters: int, iterations: int, seed: int) -> Float32:
    """Return unit centroids [C, D] of contexts of any length, at most one a context."""
    # Scaled first, as squares could overflow.
    unit_SD = hidden_SD / np.maximum(np.abs(hidden_SD).max(axis=1, keepdims=True), TINY)
    unit_SD /= np.maximum(np.linalg.norm(unit_SD, axis=1, keepdims=True), TINY)
    trained = train(unit_SD, clusters, iterations, seed, most=len(unit_SD))
    return np.asarray(trained.centroids, np.float32)


def train(unit_SD: Float32, clusters: int, iterations: int, seed: int, most: int) -> Any:
    """Return faiss's k-means of unit vectors, trained on at most `most` of them for a cluster."""
    import faiss

    trained = faiss.Kmeans(
        unit_SD.shape[1],
        min(clusters, len(unit_SD)),
        niter=iterations,
        spherical=True,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=most,
    )
    trained.train(unit_SD)
    return trained
