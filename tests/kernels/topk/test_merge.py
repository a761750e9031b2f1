"""A head's answer merged with edited ids; what comes of it is tested where heads are."""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.topk.merge import merge_edited


def test_rows_of_any_length() -> None:
    best_ids, best_logits = np.empty((4, 3), np.int32), np.empty((4, 3))
    merge_edited(
        np.array([0, 2, 4, 4, 5]),
        np.array([4, 9, 1, 2, 6], np.int32),
        np.array([7.0, 5.0, 3.0, 3.0, 1.0]),
        np.array([0, 2, 2, 4, 4]),
        np.array([2, 8, 0, 3], np.int32),
        np.array([-np.inf, 7.0, 2.0, -np.inf]),
        np.array([3, 1, 1, 0]),
        best_ids,
        best_logits,
    )
    assert best_ids.tolist() == [[4, 8, 9], [1, -1, -1], [0, -1, -1], [-1, -1, -1]]
    none = -np.inf
    assert best_logits.tolist() == [[7, 7, 5], [3, none, none], [2, none, none], [none] * 3]
