"""The callback that copies `result_norm` out of llama.cpp's graph, and ends the graph there.

ggml's scheduler calls it for every node: first to ask if the value is needed, then after it was
computed, when false ends the graph. Numba compiles it to machine code that compares the node's
name.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numba import carray, cfunc, types  # type: ignore[attr-defined]

from logitsieve.api.results import Float32
from logitsieve.llamacpp.library import TensorLayout

NAME = b"result_norm\0"  # the tensor that enters the output matrix
_FIRST = int.from_bytes(NAME[:8], "little")
_SECOND = int.from_bytes(NAME[8:], "little")

# Words of the state that the callback reads and writes.
MODE, COLUMNS, DATA, NAME_AT, BUFFER, ROWS, FULL, DIM, FAULT = range(9)
STATE_WORDS = 9
OFF, COPY, STOP = 0, 1, 2  # MODE: do nothing; copy the rows; copy them and end the graph
TOO_MANY, OTHER = 1, 2  # FAULT: too many rows; not a float32 [rows, DIM]


@cache
def callback() -> Any:
    """Compile the callback, which is never freed; its last argument is the state's address."""
    memmove = ctypes.CDLL(None).memmove
    memmove.restype, memmove.argtypes = None, (ctypes.c_size_t,) * 3

    @cfunc(types.boolean(types.voidptr, types.boolean, types.voidptr))
    def take_hidden(tensor: Any, asking: Any, argument: Any) -> Any:
        state = carray(argument, (STATE_WORDS,), np.int64)
        if state[MODE] == OFF:
            return False
        words = carray(tensor, (64,), np.int64)
        name = state[NAME_AT]
        if words[name] != _FIRST or (words[name + 1] & 0xFFFFFFFF) != _SECOND:
            return False
        if asking:
            return True
        columns = state[COLUMNS]
        rows, row_bytes = words[columns + 1], 4 * state[DIM]
        wrong = words[columns] != state[DIM] or (words[0] & 0xFFFFFFFF) != 0
        if (
            wrong
            or words[columns + 2] != 1
            or words[columns + 3] != 1
            or words[columns + 4] != 4
            or (rows > 1 and words[columns + 5] != row_bytes)
        ):
            state[FAULT] = OTHER
        elif state[ROWS] + rows > state[FULL]:
            state[FAULT] = TOO_MANY
        else:
            target = state[BUFFER] + state[ROWS] * row_bytes
            memmove(target, words[state[DATA]], rows * row_bytes)
            state[ROWS] += rows
        return state[MODE] == COPY

    return take_hidden


class HiddenHook:
    """The callback and its state, for at most `rows` rows of `dim` float32 per decode."""

    def __init__(self, layout: TensorLayout, rows: int, dim: int) -> None:
        self.address = int(callback().address)
        self._copied = np.zeros((rows, dim), np.float32)
        self._state = np.zeros(STATE_WORDS, np.int64)
        self._state[[COLUMNS, DATA, NAME_AT]] = layout.columns, layout.data, layout.name
        self._state[[BUFFER, FULL, DIM]] = self._copied.ctypes.data, rows, dim

    @property
    def argument(self) -> int:
        return int(self._state.ctypes.data)

    def begin(self, mode: int) -> None:
        """Set the mode of the next decode: OFF, COPY or STOP."""
        self._state[[MODE, ROWS, FAULT]] = mode, 0, 0

    @property
    def fault(self) -> int:
        """0, or TOO_MANY or OTHER of the last decode."""
        return int(self._state[FAULT])

    def rows(self) -> Float32:
        """A copy of the last decode's rows, float32 [rows, D]."""
        return self._copied[: self._state[ROWS]].copy()
