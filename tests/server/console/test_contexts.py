from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.server.console.contexts import kept_contexts, kept_count, read_context, read_npy
from tests.server.console.conftest import KEPT
from tests.synthetic import make_hidden

HIDDEN = make_hidden(KEPT)


def npy(array: np.ndarray, **options: Any) -> bytes:
    file = BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


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


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_row_of_a_file(demo: LocalDecoder, dtype: Any, order: Any) -> None:
    array = np.array(HIDDEN, dtype, order=order)
    facts = read_npy(demo.index, npy(array), 5)
    assert (facts["rows"], facts["number"]) == (KEPT, 5)
    assert np.array_equal(np.array(facts["row"]), array[5].astype(np.float32))


def test_a_file_of_one_row(demo: LocalDecoder) -> None:
    assert read_npy(demo.index, npy(HIDDEN[0]), 0)["rows"] == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        npy(HIDDEN)[:-1],
        npy(np.arange(24)),
        npy(np.array(1.0)),
        npy(HIDDEN[:, :5]),
        npy(np.full(24, np.nan)),
        npy(np.array([{}] * 24), allow_pickle=True),
        npy(HIDDEN).replace(b"(48, 24)", b"(48000000000000, 24)"),
    ],
)
def test_no_such_file(demo: LocalDecoder, data: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_npy(demo.index, data, 0)
    assert caught.value.field == "file"


def test_a_row_that_the_file_lacks(demo: LocalDecoder) -> None:
    with pytest.raises(InvalidRequest, match="number"):
        read_npy(demo.index, npy(HIDDEN), KEPT)
