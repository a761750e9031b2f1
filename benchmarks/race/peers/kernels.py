"""Loops that the peers written here share: the best of listed rows by their true logits.

Free to reorder sums (`reassoc`, `contract`), as any library's float32 product is.
Shape letters: D hidden size, V vocabulary, K answers, S listed rows.
"""

from typing import Any

import numba
import numpy as np

fast = numba.njit(nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"})


@fast
def dot(a: Any, b: Any) -> Any:
    """float32 a . b."""
    total = np.float32(0)
    for d in range(a.size):
        total += a[d] * b[d]
    return total


@fast
def offer(best_K: Any, value_K: Any, word: Any, value: Any) -> None:
    """Insert a word where its value, which is above the last, belongs; the last one drops out."""
    place = best_K.size - 1
    while place > 0 and value_K[place - 1] < value:
        value_K[place], best_K[place] = value_K[place - 1], best_K[place - 1]
        place -= 1
    value_K[place], best_K[place] = value, word


@fast
def best_of(rows_VD: Any, hidden_D: Any, listed_S: Any, best_K: Any, value_K: Any) -> None:
    """Put the K best of the listed rows into `best_K`, best first; -1 where there are fewer."""
    best_K[:] = -1
    value_K[:] = -np.inf
    last = best_K.size - 1
    for number in range(listed_S.size):
        value = dot(rows_VD[listed_S[number]], hidden_D)
        if value > value_K[last]:
            offer(best_K, value_K, listed_S[number], value)
