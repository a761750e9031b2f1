"""Fit inverted lists for `ivf`: the best of several starts of k-means, and its probes.

Auvolat et al. 2015, section 3: with rows [w; b] / M extended to norm 1, the largest logit has the
smallest angle, and spherical k-means groups rows that are large for the same queries.

Shape letters: E = D + 2.
"""

import numpy as np

from logitsieve.api.results import Float32, Int64
from logitsieve.heads import Softmax
from logitsieve.index_builder.fitting import FitInputs, FitResult, heldout_sample, least_reaching
from logitsieve.index_builder.reduction import augmented

POINTS = 256  # rows per centroid that k-means sees


def fit_ivf(inputs: FitInputs) -> FitResult:
    """Return the clusters of the seed that scans least at the target (they vary), and nprobe."""
    softmax, config = inputs.softmax, inputs.config
    clusters = config.ivf_clusters or max(1, round(4 * softmax.vocab_size**0.5))
    hidden_HD, labels_HK = heldout_sample(inputs)
    fits: list[tuple[float, FitResult]] = []  # by the rows that each scans
    for number in range(config.ivf_starts):
        arrays = cluster_arrays(softmax, clusters, config.kmeans_iterations, config.seed + number)
        needed_HK, read_HC = cluster_ranks(arrays, hidden_HD, labels_HK)
        nprobe = least_reaching(needed_HK)
        fit = FitResult(arrays, {"clusters": len(arrays["biases"])}, {"nprobe": nprobe})
        fits.append((float(read_HC[:, nprobe - 1].mean()), fit))
        inputs.progress("fit ivf", number + 1, config.ivf_starts)
    return min(fits, key=lambda fit: fit[0])[1]


def cluster_ranks(
    arrays: dict[str, np.ndarray], hidden_HD: Float32, labels_HK: Int64
) -> tuple[Int64, Int64]:
    """Return [H, K] probes that find the label, and [H, C] rows scanned by 1, 2, ... probes."""
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


def cluster_arrays(
    softmax: Softmax, clusters: int, iterations: int, seed: int
) -> dict[str, np.ndarray]:
    """Return the `ivf` part: `centroids` [C, D], `biases` [C] and no empty list."""
    import faiss

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
