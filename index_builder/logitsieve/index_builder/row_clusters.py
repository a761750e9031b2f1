"""k-means over the rows of W, as maximum inner product search wants it.

papers/004 (Auvolat et al. 2015), section 3: a row [w; b] / M gets the coordinate that makes its
norm 1, the query [h; 1] a zero, so that the largest logit is the smallest angle, and spherical
k-means groups rows that are large for the same queries. What a centroid has in the bias's place
is its own bias.

Shape letters: V vocabulary, D hidden size, E = D + 2, C clusters.
"""

from __future__ import annotations

import faiss
import numpy as np

from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.reduction import augmented

POINTS = 256  # rows a centroid that k-means sees


def cluster_arrays(
    softmax: Softmax, clusters: int, iterations: int, seed: int
) -> dict[str, np.ndarray]:
    """The `ivf` part: `centroids` [C, D], `biases` [C], and the rows by cluster; none is empty."""
    rows_VE = augmented(softmax)
    clusters = min(clusters, len(rows_VE))
    kmeans = faiss.Kmeans(
        rows_VE.shape[1],
        clusters,
        niter=iterations,
        spherical=True,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=POINTS,
    )
    kmeans.train(rows_VE)
    cluster_V = kmeans.index.search(rows_VE, 1)[1][:, 0]
    sizes_C = np.bincount(cluster_V, minlength=clusters)
    used = sizes_C > 0
    centroids = np.asarray(kmeans.centroids, np.float32)[used]
    return {
        "centroids": np.ascontiguousarray(centroids[:, : softmax.dim]),
        "biases": np.ascontiguousarray(centroids[:, softmax.dim]),
        "offsets": np.concatenate([[0], np.cumsum(sizes_C[used])]).astype(np.int32),
        "ids": np.argsort(cluster_V, kind="stable").astype(np.int32),
    }
