from __future__ import annotations

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.server.console.words import LONGEST, find_words, read_ids, read_word, word_facts
from tests.server.console.conftest import HOSTILE


def test_words_are_sent_as_they_are_but_cut(demo: LocalDecoder) -> None:
    facts = word_facts(demo.index, range(len(HOSTILE)))
    assert [one["word"] for one in facts] == [word[:LONGEST] for word in HOSTILE]
    assert [one["id"] for one in facts if one["cut"]] == [4]


def test_an_exact_word_is_found_first_then_an_id(demo: LocalDecoder) -> None:
    assert [one["word"] for one in find_words(demo.index, "word12")][:2] == ["word12", "word120"]
    assert find_words(demo.index, "12")[0]["id"] == find_words(demo.index, "#12")[0]["id"] == 12
    assert find_words(demo.index, "onerror")[0]["id"] == 0
    assert find_words(demo.index, "") == find_words(demo.index, "nowhere") == []
    assert len(find_words(demo.index, "word")) == 20


def test_an_index_without_words_has_ids(bare: LocalDecoder) -> None:
    assert find_words(bare.index, "7") == [{"id": 7, "word": None, "cut": False}]
    assert find_words(bare.index, "40") == []
    with pytest.raises(InvalidRequest, match="no vocabulary"):
        read_word(bare.index, "word")


@pytest.mark.parametrize("value", ["unknown", 300, -1, True, None, 1.5])
def test_no_word(demo: LocalDecoder, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_word(demo.index, value)
    assert caught.value.field == "word"


def test_lists_of_words_and_ids(demo: LocalDecoder) -> None:
    assert read_ids(demo.index, "banned", ["word12", 9, 12]) == [9, 12]
    for value in ("word12", ["unknown"]):
        with pytest.raises(InvalidRequest) as caught:
            read_ids(demo.index, "banned", value)
        assert caught.value.field == "banned"
