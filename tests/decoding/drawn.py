"""Softmaxes, decoders and constraints to be drawn from, and what constraints must make of a row."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from logitsieve.api.constraints import Constraints
from logitsieve.decoding import LocalDecoder
from logitsieve.heads import Softmax
from tests.oracle import edited, logits64
from tests.synthetic import make_softmax, write_heads

SIZES = (1, 2, 17, 300)
Whole = Callable[[int, bool], LocalDecoder]  # the fixture `whole`


@cache
def softmax_of(size: int, tied: bool) -> Softmax:
    """V = size; where tied, many rows are equal."""
    softmax = make_softmax(size, 8, seed=size)
    if not tied:
        return softmax
    places = np.arange(size) // 7
    return Softmax(softmax.weight[places].copy(), softmax.bias[places].copy())


@st.composite
def constraints_of(draw: st.DrawFn, size: int, rows: int) -> Constraints:
    """Any mix of any lists; each may be absent, empty, the whole vocabulary, or repeat ids."""
    ids = st.lists(st.integers(0, size - 1), max_size=8)
    many = st.integers(0, size).map(lambda n: list(range(n)))
    lists = st.none() | st.lists(ids | many, min_size=rows, max_size=rows)
    biased = draw(lists)
    bias = None
    if biased is not None:
        biased = [list(dict.fromkeys(row)) for row in biased]
        amounts = st.floats(-30, 30, width=32) | st.sampled_from([0.0, 3e38, -3e38])
        bias = [draw(st.lists(amounts, min_size=len(r), max_size=len(r))) for r in biased]
    return Constraints(
        banned=draw(lists), allowed=draw(st.none() | lists), biased=biased, bias=bias,
        repeated=draw(lists), repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.5, 1e6])),
    )  # fmt: skip


def edited_logits(
    softmax: Softmax, hidden_states: np.ndarray, constraints: Constraints
) -> np.ndarray:
    """[B, V] by brute force."""
    lists: Any = constraints
    rows = logits64(softmax.weight, softmax.bias, hidden_states)
    for row, logits in enumerate(rows):
        rows[row] = edited(
            logits,
            banned=() if lists.banned is None else lists.banned[row],
            allowed=None if lists.allowed is None else lists.allowed[row],
            biased=lists.biased and dict(zip(lists.biased[row], lists.bias[row], strict=True)),
            repeated=() if lists.repeated is None else lists.repeated[row],
            penalty=lists.repetition_penalty,
        )
    return rows


def write_whole(folder: Path, size: int, tied: bool) -> Path:
    """An index with full, sketch and screen over `softmax_of`."""
    out = folder / f"whole{'-tied' * tied}" / str(size)
    return write_heads(out, softmax_of(size, tied), "screen", "sketch")
