"""Fits `svd`: W is rotated so that its first columns hold most of it.

Shim et al. 2017, SVD-softmax, section 3: W = U S V^T. V are computed as eigenvectors of W^T W.

Shape letters: R rank.
"""

import numpy as np

from logitsieve.api.results import Float32, Int64
from logitsieve.heads import Softmax
from logitsieve.index_builder.fitting import FitInputs, FitResult, heldout_sample, least_reaching

GROUP_ROWS = 16
BLOCK_ROWS = 8192
WIDEST = 256
GATHERED = 2  # cost of a number in a row of W, relative to one in the preview


def fit_svd(inputs: FitInputs) -> FitResult:
    """Return the preview, with the cheapest width and candidates that reach TARGET."""
    softmax = inputs.softmax
    rank = inputs.config.svd_width or min(-(-softmax.dim // 4), WIDEST)
    arrays = preview_arrays(softmax, rank)
    rank = len(arrays["basis"])
    hidden_HD, labels_HK = heldout_sample(inputs)
    costs: list[tuple[float, int, int]] = []
    widths = sorted({-(-rank * part // 8) for part in (1, 2, 3, 4, 6, 8)})
    for number, width in enumerate(widths, start=1):
        needed_HK = preview_ranks(softmax, arrays, width, hidden_HD, labels_HK)
        count = least_reaching(needed_HK)
        cost = width * (softmax.vocab_size + softmax.dim) + GATHERED * count * softmax.dim
        costs.append((cost, width, count))
        inputs.progress("fit svd", number, len(widths))
    _, width, count = min(costs)
    return FitResult(arrays, {"rank": rank}, {"width": width, "candidates": count})


def preview_arrays(softmax: Softmax, rank: int) -> dict[str, np.ndarray]:
    """Return `basis` [R, D] and `preview` [G, R, 16], padded with zeros."""
    basis_RD = rotation(softmax.weight)[:rank]
    vocab_size, rank = softmax.vocab_size, len(basis_RD)
    groups = -(-vocab_size // GROUP_ROWS)
    preview = np.zeros((groups, rank, GROUP_ROWS), np.float32)
    for start in range(0, groups, BLOCK_ROWS // GROUP_ROWS):
        rows = softmax.weight[start * GROUP_ROWS : start * GROUP_ROWS + BLOCK_ROWS]
        turned = np.zeros((-(-len(rows) // GROUP_ROWS) * GROUP_ROWS, rank), np.float32)
        turned[: len(rows)] = rows.astype(np.float64) @ basis_RD.T
        grouped = turned.reshape(-1, GROUP_ROWS, rank)
        preview[start : start + len(grouped)] = grouped.transpose(0, 2, 1)
    return {"basis": np.ascontiguousarray(basis_RD, np.float32), "preview": preview}


def rotation(weight: Float32) -> np.ndarray:
    """Return V^T, float64 [D, D], by descending singular values."""
    gram_DD = np.zeros((weight.shape[1],) * 2)
    for start in range(0, len(weight), BLOCK_ROWS):
        block = weight[start : start + BLOCK_ROWS].astype(np.float64)
        gram_DD += block.T @ block
    return np.ascontiguousarray(np.linalg.eigh(gram_DD)[1].T[::-1])


def preview_ranks(
    softmax: Softmax,
    arrays: dict[str, np.ndarray],
    width: int,
    hidden_HD: Float32,
    labels_HK: Int64,
) -> np.ndarray:
    """Return how many candidates a preview of this width needs to include each label, [H, K]."""
    columns_WV = np.concatenate(list(arrays["preview"][:, :width]), axis=1)
    columns_WV = columns_WV[:, : softmax.vocab_size]
    turned_HW = hidden_HD @ arrays["basis"][:width].T
    needed = np.empty(labels_HK.shape, np.int64)
    step = max(1, (1 << 24) // softmax.vocab_size)
    for start in range(0, len(hidden_HD), step):
        part = slice(start, start + step)
        scores_HV = turned_HW[part] @ columns_WV + softmax.bias
        own_HK = np.take_along_axis(scores_HV, labels_HK[part], 1)
        for label in range(labels_HK.shape[1]):
            needed[part, label] = (scores_HV >= own_HK[:, label, None]).sum(1)
    return needed
