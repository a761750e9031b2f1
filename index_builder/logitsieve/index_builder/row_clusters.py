"""k-means over the rows of W for maximum inner product search.

papers/004 (Auvolat et al. 2015), section 3: a row [w; b] / M is extended to norm 1, the query [h;
1] by a zero. Then the largest logit has the smallest angle, and spherical k-means groups rows that
are large for the same queries. A centroid's coordinate for the bias is its own bias.

Shape letters: V vocabulary, D hidden size, E = D + 2, C clusters.
"""

from __future__ import annotations

import faiss
import numpy as np

from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.reduction import augmented

POINTS = 256  # rows per centroid that k-means sees


def cluster_arrays(
    softmax: Softmax, clusters: int, iterations: int, seed: int
) -> dict[str, np.ndarray]:
    """Return the `ivf` part: `centroids` [C, D], `biases` [C] and no empty list."""
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
