"""Fit inverted lists for `ivf`: the best of several starts of k-means, and its probes.

papers/004 (Auvolat et al. 2015), section 3; `row_clusters.py` is the k-means.

Shape letters: C clusters, H held-out contexts judged, K labels.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Float32, Int64
from logitsieve.index_builder.fitting import FitInputs, FitResult, heldout_sample, least_reaching
from logitsieve.index_builder.row_clusters import cluster_arrays


def fit_ivf(inputs: FitInputs) -> FitResult:
    """Return the one of `ivf_starts` seeds that scans least at the target, and its nprobe.

    Starts differ much: a frequent row in a list that is probed late costs all its contexts.
    """
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
