"""The context of a question: one that the index keeps, or a row of numbers.

Shape letters: N kept contexts, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32
from logitsieve.index import Index
from logitsieve.index.calibration import unpack_contexts
from logitsieve.utils.hidden import as_hidden


def kept_contexts(index: Index) -> Float32:
    """Contexts [N, D] that the calibration of the index keeps; N is 0 if it keeps none."""
    kept = unpack_contexts(index.measured or {}, index.dim)
    return np.empty((0, index.dim), np.float32) if kept is None else kept


def kept_count(index: Index) -> int:
    """N, without unpacking them."""
    contexts = (index.calibration or {}).get("contexts")
    return int(contexts["rows"]) if isinstance(contexts, Mapping) else 0


def read_context(index: Index, question: Mapping[str, Any]) -> Float32:
    """[1, D] of `kept`, a number, or of `row`, D numbers; InvalidRequest names the field."""
    row = question.get("row")
    if row is not None:
        if not isinstance(row, list) or not all(type(x) in (int, float) for x in row):
            raise InvalidRequest("row", f"{row!r:.80}", f"{index.dim} numbers")
        if len(row) != index.dim:
            raise InvalidRequest("row", f"{len(row)} numbers", f"{index.dim}, the hidden size")
        hidden = as_hidden(np.array(row, np.float64), index.dim)
        if not np.isfinite(hidden).all():
            raise InvalidRequest("row", "NaN or infinity", "finite float32 numbers")
        return hidden
    kept, number = kept_contexts(index), question.get("kept")
    if not len(kept):
        raise InvalidRequest("kept", "a number", "`row` instead: the index keeps no contexts")
    if type(number) is not int or not 0 <= number < len(kept):
        raise InvalidRequest("kept", f"{number!r:.80}", f"a context, 0 to {len(kept) - 1}")
    return kept[number : number + 1]
