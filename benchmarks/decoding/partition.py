"""How far the `sampled` log Z is off, for candidates that are the true top k and l sampled ids.

Shape letters: N contexts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from logitsieve.api.results import Float32
from logitsieve.heads import Softmax
from logitsieve.kernels.sampling.sampled_tail import sampled_log_z

REPEATS = 4  # samples of each context


def partition_errors(
    softmax: Softmax,
    hidden: Float32,
    ks: Sequence[int],
    ls: Sequence[int],
    seed: int,
    progress: Callable[[str, int, int], None],
) -> list[dict[str, Any]]:
    """A record for each k and l: errors of log Z over contexts and samples, beside the reported."""
    weight, bias = softmax.weight.astype(np.float64), softmax.bias.astype(np.float64)
    logits_NV = hidden.astype(np.float64) @ weight.T + bias
    top_N = logits_NV.max(axis=1)
    truth_N = top_N + np.log(np.exp(logits_NV - top_N[:, None]).sum(axis=1))
    order_NV = np.argsort(-logits_NV, axis=1).astype(np.int32)
    random = np.random.default_rng(seed)
    records = []
    for k in ks:
        ids_NK = order_NV[:, :k]
        values_NK = np.take_along_axis(logits_NV, ids_NK, axis=1)
        offsets = np.arange(len(hidden) + 1, dtype=np.int64) * k
        for taken in ls:
            found = np.empty((REPEATS, len(hidden), 2), np.float32)
            sizes = np.full(len(hidden), taken, np.int64)
            for sample in found:
                seeds = random.integers(1 << 63, size=len(hidden), dtype=np.uint64)
                named = ids_NK.ravel(), values_NK.ravel()
                sampled_log_z(
                    softmax.record.ctypes.data, hidden, seeds, 1.0, offsets, *named, sizes, sample
                )
            error, reported = found[..., 0] - truth_N, found[..., 1]
            records.append(
                {
                    "k": k,
                    "l": taken,
                    "mean_error": float(error.mean()),
                    "rms_error": float(np.sqrt((error**2).mean())),
                    "median_error": float(np.median(np.abs(error))),
                    "reported": float(np.sqrt((reported.astype(np.float64) ** 2).mean())),
                    "within_two": float((np.abs(error) <= 2 * reported).mean()),
                }
            )
            progress("sample log Z", len(records), len(ks) * len(ls))
    return records
