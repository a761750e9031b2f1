import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.console.answers import (
    LONGEST,
    kept_contexts,
    kept_count,
    read_context,
    read_ids,
    read_word,
    word_facts,
)
from logitsieve.decoding import LocalDecoder
from tests.console.conftest import HOSTILE, KEPT
from tests.refusals import refused
from tests.synthetic import make_hidden

HIDDEN = make_hidden(KEPT)


def test_kept_contexts_and_pasted_rows(demo: LocalDecoder) -> None:
    assert kept_count(demo.index) == KEPT
    assert np.array_equal(read_context(demo.index, {"kept": 3}), HIDDEN[3:4])
    row = [*HIDDEN[0].tolist()[:-1], 2]
    assert np.array_equal(read_context(demo.index, {"row": row}), np.array([row], np.float32))


def test_an_index_of_ids_alone_has_neither_contexts_nor_words(bare: LocalDecoder) -> None:
    assert len(kept_contexts(bare.index)) == kept_count(bare.index) == 0
    with pytest.raises(InvalidRequest, match="`row` instead"):
        read_context(bare.index, {"kept": 0})
    assert word_facts(bare.index, [7]) == [{"id": 7, "word": None, "cut": False}]
    with pytest.raises(InvalidRequest, match="no vocabulary"):
        read_word(bare.index, "word")


def test_words_are_cut_named_and_listed(demo: LocalDecoder) -> None:
    facts = word_facts(demo.index, range(len(HOSTILE)))
    assert [one["word"] for one in facts] == [word[:LONGEST] for word in HOSTILE]
    assert [one["id"] for one in facts if one["cut"]] == [4]
    assert read_word(demo.index, "word12") == read_word(demo.index, 12) == 12
    with pytest.raises(InvalidRequest, match=r"a word of the vocabulary, 'word10', 'word20', "):
        read_word(demo.index, "0")
    assert read_ids(demo.index, "banned", ["word12", 9, 12]) == [9, 12]
    with refused("banned"):
        read_ids(demo.index, "banned", ["unknown"])
