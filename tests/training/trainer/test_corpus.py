from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer import Corpus
from logitsieve.training.trainer.corpus import encode


def test_ids_are_those_of_the_vocabulary(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [" ".join(f"w{n}" for n in rng.zipf(1.5, 20) % 50) for _ in range(200)]
    (tmp_path / "text").write_text("\n".join(lines))
    made = encode(tmp_path, tmp_path / "text", None, size=20, valid_share=0.25)
    corpus = Corpus.open(tmp_path)
    every = np.concatenate([corpus.train, corpus.valid])
    assert len(every) == 200 * 21
    assert len(corpus.valid) == 1050
    assert every.dtype == np.int32
    expected = corpus.vocabulary.encode("\n".join(lines) + "\n")
    np.testing.assert_array_equal(every, expected)
    np.testing.assert_array_equal(corpus.counts, np.bincount(corpus.train, minlength=20))
    assert len(corpus.vocabulary) == len(made.vocabulary) == 20


def test_what_is_held_out_has_no_say_in_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a b c\n" * 9 + "secret secret secret")
    corpus = encode(tmp_path, tmp_path / "text", None, size=99, valid_share=0.1)
    assert corpus.vocabulary.words == ("<unk>", "<eos>", "a", "b", "c")
    assert corpus.vocabulary.decode(corpus.valid) == "<unk> <unk> <unk>\n"
    (tmp_path / "valid").write_text("b secret")
    corpus = encode(tmp_path, tmp_path / "text", tmp_path / "valid", size=99, valid_share=0.1)
    assert corpus.valid.tolist() == corpus.vocabulary.encode("b secret\n")
    assert corpus.counts.tolist() == [0, 10, 9, 9, 9, 3]


def test_the_most_frequent_words_have_the_lowest_ids(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a b b c c c d d d d\n" * 30)
    corpus = encode(tmp_path, tmp_path / "text", None, size=4, valid_share=0.01)
    counted = Counter(corpus.train.tolist())
    assert corpus.vocabulary.words == ("<unk>", "d", "c", "<eos>")
    assert corpus.counts.tolist() == [counted[number] for number in range(4)]


def test_one_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / ".tmp-corpus").mkdir()  # left by one that was killed
    with pytest.raises(InvalidRequest, match="text: got"):
        encode(tmp_path, tmp_path / "empty", None, size=4, valid_share=0.1)
    (tmp_path / "text").write_text("a b\n")
    with pytest.raises(InvalidRequest, match="valid: got"):
        encode(tmp_path, tmp_path / "text", tmp_path / "empty", size=4, valid_share=0.1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "text"]
