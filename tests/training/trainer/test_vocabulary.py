from __future__ import annotations

from pathlib import Path

import pytest

from logitsieve.training.trainer import Vocabulary

WORDS = ("<unk>", "<eos>", "the", "table", ".", "(", ")", "pg", "_", "class", "N")


def test_vocabulary_round_trip(tmp_path: Path) -> None:
    vocabulary = Vocabulary(WORDS)
    vocabulary.save(tmp_path)
    loaded = Vocabulary.load(tmp_path)
    assert loaded.words == WORDS
    assert loaded.encode(" ".join(WORDS)) == list(range(len(WORDS)))
    assert loaded.encode("the zebra\n") == [2, 0, 1]


def test_vocabulary_holds_the_most_frequent_words() -> None:
    counts = {"b": 2, "c": 3, "<unk>": 9, "a": 2, "<eos>": 3, "never": 0}
    assert Vocabulary.most_frequent(counts, 4).words == ("<unk>", "<eos>", "c", "a")
    assert Vocabulary.most_frequent(counts, 9).words == ("<unk>", "<eos>", "c", "a", "b")


@pytest.mark.parametrize("size", [2, 3])
def test_the_end_is_always_a_word(size: int) -> None:
    vocabulary = Vocabulary.most_frequent({"a": 3, "b": 2, "<eos>": 1}, size)
    assert len(vocabulary) == size
    assert "<eos>" in vocabulary.words


@pytest.mark.parametrize("words", [("a", "<eos>"), ("<unk>", "a"), ("<unk>", "<eos>", "a", "a")])
def test_vocabulary_refuses_other_word_lists(words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="words"):
        Vocabulary(words)


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("the table .\n", "the table.\n"),
        ("pg _ class ( the table )", "pg_class (the table)"),
        ("_ _ class _ _ ( )", "__class__()"),
        ("N . N . N . the table", "N.N.N. the table"),
    ],
)
def test_decode_joins_punctuation(tokens: str, text: str) -> None:
    vocabulary = Vocabulary(WORDS)
    assert vocabulary.decode(vocabulary.encode(tokens)) == text
