"""The best tokens by logits in float64, to compare answers with.

Float32 products of every row leave few rows that could be the best within their error: these are
multiplied in float64.

Shape letters: N contexts, D hidden size, V vocabulary.
"""

from typing import Any

import numpy as np

from logitsieve.api.results import Float32, Int64
from logitsieve.llamacpp import OutputMatrix

PART = 512  # contexts multiplied by a part of W
ROWS = 8192  # of W, in a part


def argmax(matrix: OutputMatrix, hidden_states: Float32) -> Int64:
    """Return the ids [N] of the largest float64 logits W h, the lower of equal ones."""
    sizes = np.linalg.norm(hidden_states.astype(np.float64), axis=1)
    best, leaders = np.full(len(hidden_states), -np.inf), np.zeros(len(hidden_states), np.int64)
    for start in range(0, matrix.shape[0], ROWS):
        rows = matrix.rows(slice(start, min(start + ROWS, matrix.shape[0])))
        longest = np.linalg.norm(rows, axis=1).max()
        # Higham 2002, (3.5): |fl(x . y) - x . y| <= gamma_D |x| |y|
        errors = 1.01 * rows.shape[1] * 2.0**-24 * longest * sizes
        for first in range(0, len(hidden_states), PART):
            part = slice(first, first + PART)
            logits = hidden_states[part] @ rows.T
            floor = np.maximum(best[part], logits.max(1) - errors[part]) - errors[part]
            for place, row in zip(*np.nonzero(logits >= floor[:, None]), strict=True):
                exact: Any = rows[row].astype(np.float64) @ hidden_states[first + place].astype(
                    np.float64
                )
                if exact > best[first + place]:
                    best[first + place], leaders[first + place] = exact, start + row
    return leaders
