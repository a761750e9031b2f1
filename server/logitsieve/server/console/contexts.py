"""The context of a question: one that the index keeps, a pasted row, or one of a .npy file.

Shape letters: N kept contexts, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from numpy.lib import format as npy

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32
from logitsieve.index import Index
from logitsieve.index.calibration import unpack_contexts
from logitsieve.utils.hidden import as_hidden

MOST_BYTES = 8 << 20  # of a .npy file
NPY = "a .npy file of [D] or [B, D] float32, float16 or float64"


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


def read_npy(index: Index, data: bytes, number: int) -> dict[str, Any]:
    """Row `number` of a .npy file, as JSON has it; InvalidRequest names `file` or `number`."""
    file = BytesIO(data)
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.kind != "f" or not 1 <= len(shape) <= 2:
            raise ValueError(f"{dtype} {list(shape)}")
        # The header may announce any size: only what has come is looked at.
        array = np.frombuffer(data, dtype, offset=file.tell(), count=int(np.prod(shape)))
    except (ValueError, OSError, OverflowError) as error:
        raise InvalidRequest("file", f"{error!s:.80}", NPY) from error
    rows = array.reshape(shape, order="F" if fortran else "C").reshape(-1, shape[-1])
    if rows.shape[1] != index.dim:
        raise InvalidRequest("file", f"D = {rows.shape[1]}", f"D = {index.dim}, the index's")
    if not 0 <= number < len(rows):
        raise InvalidRequest("number", number, f"a row, 0 to {len(rows) - 1}")
    row = as_hidden(np.array(rows[number], np.float64), index.dim)
    if not np.isfinite(row).all():
        raise InvalidRequest("file", f"NaN or infinity in row {number}", "finite numbers")
    return {"rows": len(rows), "number": number, "row": row[0].tolist()}
