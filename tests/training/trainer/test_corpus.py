from __future__ import annotations

import gzip
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer import Corpus
from logitsieve.training.trainer.corpus import (
    WINDOW,
    TextStreams,
    encode,
    epoch_shift,
    read_words,
    windows,
)


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
    (tmp_path / ".tmp-corpus").mkdir()  # left by one that was killed
    corpus = encode(tmp_path, tmp_path / "text", None, size=4, valid_share=0.01)
    counted = Counter(corpus.train.tolist())
    assert corpus.vocabulary.words == ("<unk>", "d", "c", "<eos>")
    assert corpus.counts.tolist() == [counted[number] for number in range(4)]


def test_one_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(InvalidRequest, match="text: got"):
        encode(tmp_path, tmp_path / "empty", None, size=4, valid_share=0.1)
    (tmp_path / "text").write_text("a b\n")
    with pytest.raises(InvalidRequest, match="valid: got"):
        encode(tmp_path, tmp_path / "text", tmp_path / "empty", size=4, valid_share=0.1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "text"]


@pytest.mark.parametrize("shift", [0, 3, 49])
def test_batches_continue_each_stream(shift: int) -> None:
    ids = np.arange(50, dtype=np.int32)
    streams = TextStreams(ids, streams=3, steps=8, shift=shift)
    assert len(streams) == 2
    (first, targets), (second, _) = streams[0], streams[1]
    torch.testing.assert_close(targets, (first + 1) % 50)
    torch.testing.assert_close(second[:, 0], (first[:, -1] + 1) % 50)
    torch.testing.assert_close(first[:, 0], (shift + torch.arange(3) * 16) % 50)
    with pytest.raises(IndexError):
        streams[2]


def test_all_leaves_out_fewer_words_than_there_are_streams() -> None:
    ids = np.arange(52, dtype=np.int32)
    seen = torch.cat([targets.flatten() for _, targets in TextStreams(ids, 3, 8).all()])
    assert sorted(seen.tolist()) == list(range(1, 52))


def test_an_epoch_begins_where_its_number_says() -> None:
    assert epoch_shift(10**12, 5, 7) == epoch_shift(10**12, 5, 7)
    assert len({epoch_shift(10**12, seed, epoch) for seed in range(3) for epoch in range(9)}) == 27


def test_windows_are_spread_over_the_text() -> None:
    ids = np.arange(7_069, dtype=np.int32)
    every = torch.cat(list(windows(ids, 10**6)))
    assert every.shape == (100, WINDOW)
    torch.testing.assert_close(every.flatten(), torch.arange(7_000))
    some = torch.cat(list(windows(ids, 710)))
    assert some.shape == (10, WINDOW)
    assert some[[0, -1]].equal(every[[0, -1]])
    assert torch.cat(list(windows(ids[:30], 5))).tolist() == [list(range(30))]


def words(path: Path) -> list[str]:
    return list(chain(*read_words(path)))


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
@pytest.mark.parametrize("gzipped", [True, False])
def test_lines_that_are_not_empty_are_closed(
    tmp_path: Path, text: str, expected: list[str], gzipped: bool
) -> None:
    content = text.encode()
    (tmp_path / "text").write_bytes(gzip.compress(content, mtime=0) if gzipped else content)
    assert words(tmp_path / "text") == expected


def test_progress_counts_bytes_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("word word\n" * 5)
    told: list[tuple[str, int, int]] = []
    list(read_words(tmp_path / "text", progress=lambda *each: told.append(each)))
    assert told == [("read text", 50, 50)]  # buffered whole


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "UTF-8"),
        (gzip.compress(b"a b c " * 99, mtime=0)[:-9], "that gzipped"),
        (b"\x1f\x8bnothing", "that gzipped"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(InvalidRequest, match=reason) as caught:
        words(tmp_path / "text")
    assert caught.value.field == "text"
    with pytest.raises(InvalidRequest, match="nowhere"):
        words(tmp_path / "nowhere")
