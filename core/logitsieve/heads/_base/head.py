"""The frozen softmax that heads answer for, their knobs, and checks of requests."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, TypeVar

import numpy as np
from numpy import ndarray

from logitsieve.api.checks import whole
from logitsieve.api.errors import InvalidKnob, InvalidRequest, between
from logitsieve.api.results import ArrayLike, Float32, Float64, Int32, Int64
from logitsieve.heads._base.spec import Arrays, PartSpec, check_structure
from logitsieve.kernels.rows.functions import decoded
from logitsieve.kernels.topk.descriptor import matrix_descriptor
from logitsieve.kernels.topk.exact_topk import csr_logits
from logitsieve.utils.hidden import as_hidden
from logitsieve.utils.stored import StoredMatrix

Entry = TypeVar("Entry")

HASHED_AT_ONCE = 1 << 24  # bytes between two reports
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
INT32, BOOL = np.dtype(np.int32), np.dtype(np.bool_)


class Softmax:
    """A frozen output layer: logits are `weight` [V, D] @ h + `bias` [V], both C-contiguous.

    bfloat16 is given by its bits, as uint16. Logits are of the stored numbers as float32.
    """

    def __init__(self, weight: np.ndarray | StoredMatrix, bias: Float32) -> None:
        self.matrix, self.bias = StoredMatrix.of(weight), bias
        vocab_size = self.matrix.vocab_size
        # Kernels read the bias by its address, unchecked.
        if bias.dtype != FLOAT32 or bias.shape != (vocab_size,) or not bias.flags.c_contiguous:
            got = f"{bias.dtype} {list(bias.shape)}"
            raise InvalidRequest("bias", got, f"float32 [{vocab_size}], C-contiguous")

    @property
    def stored(self) -> np.ndarray:
        return self.matrix.data

    @property
    def vocab_size(self) -> int:
        return self.matrix.vocab_size

    @property
    def dim(self) -> int:
        return self.matrix.dim

    def rows(self, rows: slice | Int64) -> Float32:
        return decoded(self.matrix[rows])

    @cached_property
    def weight(self) -> Float32:
        """float32 [V, D] for building and judging: 4 V D bytes, kept after the first use."""
        values = decoded(self.matrix)
        if values is not self.stored:
            values.flags.writeable = False
        return values

    @cached_property
    def sha256(self) -> str:
        """The identity of the numbers (hex), as docs/index-format.md defines it."""
        return softmax_sha256(self.matrix, self.bias)

    @cached_property
    def descriptor(self) -> Int64:
        """The record of the matrix that kernels read."""
        return matrix_descriptor(self.matrix, self.bias)

    @cached_property
    def address(self) -> int:
        return self.descriptor.ctypes.data

    def logits64(self, hidden_states: Float32, offsets: Int64, ids: Int32) -> Float64:
        """Return the exact float64 logits of each row's ids (CSR), for hidden_states [B, D].

        InvalidRequest names a row that is not finite or too large, even if it has no ids.
        """
        values = np.empty(ids.size, np.float64)
        if (bad := csr_logits(self.address, hidden_states, offsets, ids, values)) >= 0:
            refuse_row(bad)
        return values

    def check_hidden(self, hidden_states: Float32) -> None:
        """Raise InvalidRequest for the first row [B, D] that is not finite or too large."""
        self.logits64(
            hidden_states, np.zeros(len(hidden_states) + 1, np.int64), np.empty(0, np.int32)
        )

    def logits(self, hidden_states: Float32, offsets: Int64, ids: Int32) -> Float32:
        return self.logits64(hidden_states, offsets, ids).astype(np.float32)


def begin_sha256(matrix: StoredMatrix) -> "hashlib._Hash":
    return hashlib.sha256(f"{matrix.kind} {matrix.vocab_size} {matrix.dim}\n".encode())


def softmax_sha256(
    weight: np.ndarray | StoredMatrix,
    bias: np.ndarray,
    report: Callable[[int], None] = lambda _: None,
) -> str:
    """Return the identity of a stored matrix and its bias; `report` counts the bytes hashed."""
    matrix = StoredMatrix.of(weight)
    digest = begin_sha256(matrix)
    for array in (matrix.data, bias):
        view = array.data.cast("B")
        for start in range(0, len(view), HASHED_AT_ONCE):
            piece = view[start : start + HASHED_AT_ONCE]
            digest.update(piece)
            report(len(piece))
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Knob:
    help: str
    default: float
    low: float = 1
    high: float = 2**31 - 1
    whole: bool = True  # whole numbers only
    tried: tuple[float, ...] = ()


def by_knob(**entries: Entry) -> Mapping[str, Entry]:
    return entries


def checked_k(k: Any, vocab_size: int) -> int:
    return whole("k", k, 1, vocab_size)


def ready_request(
    hidden_states: ArrayLike, k: int, dim: int, vocab_size: int
) -> tuple[Float32, int, int]:
    """Return (C-contiguous float32 [B, D], B, k), with 1 <= k <= V; or InvalidRequest.

    Valid arguments take no function call; each would cost a microsecond.
    """
    if (
        type(hidden_states) is ndarray
        and hidden_states.dtype is FLOAT32
        and hidden_states.flags.c_contiguous
    ):
        shape = hidden_states.shape
        fits = len(shape) == 2 and shape[1] == dim and shape[0] > 0
        if fits and type(k) is int and 0 < k <= vocab_size:
            return hidden_states, shape[0], k
    hidden_states = as_hidden(hidden_states, dim)
    return hidden_states, hidden_states.shape[0], checked_k(k, vocab_size)


def ready_hidden(hidden_states: ArrayLike, dim: int) -> Float32:
    """Return `hidden_states` as C-contiguous float32 [B, D], copied only if needed."""
    return ready_request(hidden_states, 1, dim, 1)[0]


def checked_knobs(
    table: Mapping[str, Knob], current: Mapping[str, float], changed: Mapping[str, float]
) -> dict[str, float]:
    point = {name: _number(knob, current.get(name, knob.default)) for name, knob in table.items()}
    for name, value in changed.items():
        if name not in table:
            raise InvalidKnob.unknown(name, value, table)
        knob = table[name]
        number = isinstance(value, Real) and type(value) is not bool
        fits = number and (float(value).is_integer() or not knob.whole)
        if not fits or not knob.low <= value <= knob.high:
            kind = "a whole number" if knob.whole else "a number"
            raise InvalidKnob(f"knobs.{name}", repr(value), between(kind, knob.low, knob.high))
        point[name] = _number(knob, value)
    return point


def _number(knob: Knob, value: float) -> float:
    return int(value) if knob.whole else float(value)


def require_part(part: PartSpec | None, arrays: Arrays, softmax: Softmax) -> None:
    assert part is not None, "a head with arrays names their part"
    try:
        check_structure(part, arrays, softmax.vocab_size, softmax.dim)
    except ValueError as error:
        raise InvalidRequest("arrays", str(error), f"the part {part.name!r}") from error
    for name in part.held(arrays):
        if not arrays[name].flags.c_contiguous:
            raise InvalidRequest("arrays", f"{name} with strides", "C-contiguous arrays")


def refuse_row(row: int) -> None:
    allowed = "finite values, ||h|| max||w|| + max|b| <= 1e38"
    raise InvalidRequest(f"hidden_states[{row}]", "NaN, infinity or a norm too large", allowed)


def refuse_first(results: Sequence[int]) -> None:
    for bad in results:
        if bad >= 0:
            refuse_row(bad)
