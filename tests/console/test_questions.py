from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.console.answers import word_facts
from logitsieve.console.questions import (
    LONGEST,
    kept_contexts,
    kept_count,
    read_context,
    read_ids,
    read_word,
)
from logitsieve.decoding import LocalDecoder
from tests.console.conftest import HOSTILE, KEPT
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


def test_words_are_sent_as_they_are_but_cut(demo: LocalDecoder) -> None:
    facts = word_facts(demo.index, range(len(HOSTILE)))
    assert [one["word"] for one in facts] == [word[:LONGEST] for word in HOSTILE]
    assert [one["id"] for one in facts if one["cut"]] == [4]


def test_words_that_contain_what_was_given_are_named(demo: LocalDecoder) -> None:
    assert read_word(demo.index, "word12") == read_word(demo.index, 12) == 12
    with pytest.raises(InvalidRequest, match=r"a word of the vocabulary, 'word10', 'word20', "):
        read_word(demo.index, "0")


def test_an_index_without_words_has_ids(bare: LocalDecoder) -> None:
    assert word_facts(bare.index, [7]) == [{"id": 7, "word": None, "cut": False}]
    with pytest.raises(InvalidRequest, match="no vocabulary"):
        read_word(bare.index, "word")


@pytest.mark.parametrize("value", ["unknown", 300, -1, True, None, 1.5])
def test_no_word(demo: LocalDecoder, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_word(demo.index, value)
    assert caught.value.field == "word"


def test_lists_of_words_and_ids(demo: LocalDecoder) -> None:
    assert read_ids(demo.index, "banned", ["word12", 9, 12]) == [9, 12]
    with pytest.raises(InvalidRequest) as caught:
        read_ids(demo.index, "banned", ["unknown"])
    assert caught.value.field == "banned"
