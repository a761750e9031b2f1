from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer import Corpus, TrainConfig, Vocabulary
from logitsieve.training.trainer.corpus import TextStreams, encode, read_words
from logitsieve.training.vocabulary import WINDOW, windows

WORDS = ("<unk>", "<eos>", "the", "table", ".")


def test_a_vocabulary_holds_the_most_frequent_words(tmp_path: Path) -> None:
    vocabulary = Vocabulary(WORDS)
    vocabulary.save(tmp_path)
    loaded = Vocabulary.load(tmp_path)
    assert loaded.words == WORDS
    assert loaded.encode(" ".join(WORDS)) == list(range(len(WORDS)))
    assert loaded.encode("the zebra\n") == [2, 0, 1]
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


def corpus_of(text: str, valid: Path | None = None, *, at: Path, **options: Any) -> Corpus:
    (at / "text").write_text(text)
    return encode(TrainConfig(text=at / "text", valid=valid, **options))


def test_ids_are_those_of_the_vocabulary(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [" ".join(f"w{n}" for n in rng.zipf(1.5, 20) % 50) for _ in range(200)]
    made = corpus_of("\n".join(lines), at=tmp_path, vocab_size=20, valid_share=0.25)
    made.save(tmp_path)
    corpus = Corpus.open(tmp_path)
    every = np.concatenate([corpus.train, corpus.valid])
    assert (len(every), len(corpus.valid)) == (200 * 21, 1050)
    assert every.dtype == np.int32
    expected = corpus.vocabulary.encode("\n".join(lines) + "\n")
    np.testing.assert_array_equal(every, expected)
    np.testing.assert_array_equal(corpus.counts, np.bincount(corpus.train, minlength=20))
    assert len(corpus.vocabulary) == len(made.vocabulary) == 20


def test_a_corpus_counts_what_is_trained_on_alone(tmp_path: Path) -> None:
    text = "a b c\n" * 9 + "secret secret secret"
    corpus = corpus_of(text, at=tmp_path, vocab_size=99, valid_share=0.1)
    assert corpus.vocabulary.words == ("<unk>", "<eos>", "a", "b", "c")
    assert corpus.valid.tolist() == [0, 0, 0, 1]
    (tmp_path / "valid").write_text("b secret")
    corpus = corpus_of(text, tmp_path / "valid", at=tmp_path, vocab_size=99)
    assert corpus.valid.tolist() == corpus.vocabulary.encode("b secret\n")
    assert corpus.counts.tolist() == [0, 10, 9, 9, 9, 3]
    text = "a b b c c c d d d d\n" * 30
    corpus = corpus_of(text, at=tmp_path, vocab_size=4, valid_share=0.01)
    counted = Counter(corpus.train.tolist())
    assert corpus.vocabulary.words == ("<unk>", "d", "c", "<eos>")
    assert corpus.counts.tolist() == [counted[number] for number in range(4)]
    with pytest.raises(InvalidRequest, match="text: got"):
        corpus_of("\n", at=tmp_path)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(InvalidRequest, match="valid: got"):
        corpus_of("a b\n", tmp_path / "empty", at=tmp_path)


@pytest.mark.parametrize("shift", [0, 3, 49])
def test_batches_continue_each_stream(shift: int) -> None:
    streams = TextStreams(np.arange(50, dtype=np.int32), streams=3, shift=shift)
    assert streams.length == 16
    (first, targets), (second, _) = streams.read(0, 8), streams.read(8, 8)
    torch.testing.assert_close(targets, (first + 1) % 50)
    torch.testing.assert_close(second[:, 0], (first[:, -1] + 1) % 50)
    torch.testing.assert_close(first[:, 0], (shift + torch.arange(3) * 16) % 50)


def test_streams_and_windows_are_spread_over_the_text() -> None:
    streams = TextStreams(np.arange(52, dtype=np.int32), 3)
    targets = [streams.read(start, 8)[1].flatten() for start in range(0, streams.length, 8)]
    assert sorted(torch.cat(targets).tolist()) == list(range(1, 52))
    ids = np.arange(7_069, dtype=np.int32)
    every = windows(ids, 10**6)
    assert every.shape == (100, WINDOW)
    np.testing.assert_array_equal(every.ravel(), np.arange(7_000))
    some = windows(ids, 710)
    assert some.shape == (10, WINDOW)
    np.testing.assert_array_equal(some[[0, -1]], every[[0, -1]])
    assert windows(ids[:30], 5).tolist() == [list(range(30))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b\nc\n", ["a", "b", "<eos>", "c", "<eos>"]),
        ("a b\nc", ["a", "b", "<eos>", "c", "<eos>"]),
        ("\n\n a \n \n\r\nb\n\n", ["a", "<eos>", "b", "<eos>"]),
        ("a\tb\n", ["a", "b", "<eos>"]),
        ("\ufeffa b\n", ["a", "b", "<eos>"]),  # as some editors begin a file
        (" \n\n", []),
        ("", []),
    ],
)
def test_lines_with_words_are_closed(tmp_path: Path, text: str, expected: list[str]) -> None:
    (tmp_path / "text").write_bytes(text.encode())
    assert list(chain(*read_words(tmp_path / "text"))) == expected
