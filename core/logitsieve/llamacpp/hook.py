"""The hook in llama.cpp's graph that copies the hidden states before the output layer."""

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numba import carray, cfunc, types  # type: ignore[attr-defined]

from logitsieve.api.results import Float32
from logitsieve.llamacpp.host import TensorLayout

NAME = b"result_norm\0"
_FIRST = int.from_bytes(NAME[:8], "little")
_SECOND = int.from_bytes(NAME[8:], "little")

# Words of the callback's state.
MODE, COLUMNS, DATA, NAME_AT, BUFFER, GIVEN, ROWS, FULL, DIM, FAULT, GRAPHS = range(11)
STATE_WORDS = 11
# Values of MODE: do nothing; copy the rows; copy them and end the graph; copy and replace them.
OFF, COPY, STOP, REPLACE = 0, 1, 2, 3
TOO_MANY, OTHER = 1, 2  # values of FAULT: too many rows, or not a float32 [rows, DIM]


@cache
def callback() -> Any:
    """Compile the callback that copies the tensor NAME out of the graph. It is never freed.

    ggml's scheduler calls it for every node: first to ask whether it wants the value, then with the
    computed value, when False ends the graph. Its last argument is the address of the state.
    """
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
            if state[MODE] == REPLACE:
                given = state[GIVEN] + state[ROWS] * row_bytes
                memmove(words[state[DATA]], given, rows * row_bytes)
            state[ROWS] += rows
        state[GRAPHS] += 1
        return state[MODE] != STOP

    return take_hidden


class HiddenHook:
    def __init__(self, layout: TensorLayout, rows: int, dim: int) -> None:
        self.address = int(callback().address)
        self._copied, self._given = np.zeros((2, rows, dim), np.float32)
        self._state = np.zeros(STATE_WORDS, np.int64)
        self._state[[COLUMNS, DATA, NAME_AT]] = layout.columns, layout.data, layout.name
        self._state[[BUFFER, GIVEN]] = self._copied.ctypes.data, self._given.ctypes.data
        self._state[[FULL, DIM]] = rows, dim

    @property
    def argument(self) -> int:
        return int(self._state.ctypes.data)

    def begin(self, mode: int, given: Float32 | None = None) -> None:
        """Prepare for the next decode; REPLACE puts the rows `given` into the graph."""
        if given is not None:
            self._given[: len(given)] = given
        self._state[[MODE, ROWS, FAULT, GRAPHS]] = mode, 0, 0, 0

    @property
    def fault(self) -> int:
        return int(self._state[FAULT])

    @property
    def graphs(self) -> int:
        return int(self._state[GRAPHS])

    def rows(self) -> Float32:
        return self._copied[: self._state[ROWS]].copy()
