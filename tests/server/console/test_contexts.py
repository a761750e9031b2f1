from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.server.console.contexts import kept_contexts, kept_count, read_context
from tests.server.console.conftest import KEPT
from tests.synthetic import make_hidden

HIDDEN = make_hidden(KEPT)


def test_a_kept_context(demo: LocalDecoder) -> None:
    assert kept_count(demo.index) == KEPT
    assert np.array_equal(read_context(demo.index, {"kept": 3}), HIDDEN[3:4])


def test_a_pasted_row(demo: LocalDecoder) -> None:
    row = [*HIDDEN[0].tolist()[:-1], 2]
    assert np.array_equal(read_context(demo.index, {"row": row}), np.array([row], np.float32))


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"kept": KEPT},
        {"kept": -1},
        {"kept": True},
        {"row": [1.0]},
        {"row": "1 2"},
        {"row": [None] * 24},
        {"row": [float("nan")] * 24},
        {"row": [1e300] * 24},
    ],
)
def test_no_context(demo: LocalDecoder, question: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"^(kept|row): "):
        read_context(demo.index, question)


def test_an_index_that_keeps_none_says_what_to_do(bare: LocalDecoder) -> None:
    assert len(kept_contexts(bare.index)) == kept_count(bare.index) == 0
    with pytest.raises(InvalidRequest, match="`row` instead"):
        read_context(bare.index, {"kept": 0})
