"""k-means over the rows of W, as maximum inner product search wants it.

papers/004 (Auvolat et al. 2015), section 3: a row [w; b] / M gets the coordinate that makes its
norm 1, the query [h; 1] a zero, so that the largest logit is the smallest angle, and spherical
k-means groups rows that are large for the same queries. What a centroid has in the bias's place
is its own bias.

Shape letters: V vocabulary, D hidden size, C clusters, H held-out contexts judged, K labels.
"""

from __future__ import annotations

import faiss
import numpy as np

from logitsieve.heads import Softmax
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fitted import Made, augmented, judges, least_reaching
from logitsieve.index_builder.material import Material
from logitsieve.types.options import Progress
from logitsieve.types.results import Float32, Int64

POINTS = 256  # rows a centroid that k-means sees


def fit_ivf(material: Material, config: BuildConfig, progress: Progress) -> Made:
    """Of `ivf_starts` seeds the one that scans least at the target; nprobe is what it needs.

    Starts differ much: one frequent row in a list that is routed to late costs all its contexts.
    """
    softmax = material.softmax
    clusters = config.ivf_clusters or max(1, round(4 * softmax.vocab_size**0.5))
    hidden_HD, labels_HK = judges(material)
    history, best, least = [], None, np.inf
    for number in range(config.ivf_starts):
        arrays = cluster_arrays(softmax, clusters, config, config.seed + number)
        needed_HK, read_H = cluster_ranks(arrays, hidden_HD, labels_HK)
        nprobe = least_reaching(needed_HK)
        rows = float(read_H[:, nprobe - 1].mean())
        history.append({"start": number, "nprobe": nprobe, "rows": rows})
        if rows < least:
            best, least = (arrays, nprobe), rows
        progress("fit ivf", number + 1, config.ivf_starts)
    assert best is not None, "there is at least one start"
    arrays, nprobe = best
    return Made(arrays, {"clusters": len(arrays["biases"])}, {"nprobe": nprobe}, history)


def cluster_arrays(
    softmax: Softmax, clusters: int, config: BuildConfig, seed: int
) -> dict[str, np.ndarray]:
    """The `ivf` part: `centroids` [C, D], `biases` [C], and the rows by cluster; none is empty."""
    rows_VE = augmented(softmax)
    clusters = min(clusters, len(rows_VE))
    kmeans = faiss.Kmeans(
        rows_VE.shape[1],
        clusters,
        niter=config.kmeans_iterations,
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


def cluster_ranks(
    arrays: dict[str, np.ndarray], hidden_HD: Float32, labels_HK: Int64
) -> tuple[Int64, Int64]:
    """[H, K] probes that find the label, and [H, C] rows read by 1, 2, ... probes."""
    sizes_C = np.diff(arrays["offsets"]).astype(np.int64)
    scores_HC = hidden_HD @ arrays["centroids"].T + arrays["biases"]
    order_HC = np.argsort(-scores_HC, axis=1, kind="stable")
    probes_HC = np.empty_like(order_HC)
    places = np.broadcast_to(np.arange(1, len(sizes_C) + 1), order_HC.shape)
    np.put_along_axis(probes_HC, order_HC, places, 1)
    cluster_V = np.empty(len(arrays["ids"]), np.int64)
    cluster_V[arrays["ids"]] = np.repeat(np.arange(len(sizes_C)), sizes_C)
    needed_HK = np.take_along_axis(probes_HC, cluster_V[labels_HK], 1)
    return needed_HK, np.cumsum(sizes_C[order_HC], axis=1)
