from __future__ import annotations

import gzip
from itertools import chain
from pathlib import Path

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer.corpus import CHARACTERS, LONGEST, read_words


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


def test_pieces_make_no_difference(tmp_path: Path) -> None:
    lines = [f"word{number} " * (number % 7) + "end" for number in range(300_000)]
    (tmp_path / "text").write_text("\n \n".join(lines))
    expected = list(chain(*([*line.split(), "<eos>"] for line in lines)))
    assert len((tmp_path / "text").read_text()) > 5 * CHARACTERS
    assert words(tmp_path / "text") == expected


@pytest.mark.parametrize("gap", [" ", "\n", " \n"])
def test_long_words_and_gaps_take_linear_time(tmp_path: Path, gap: str) -> None:
    """A search that tries each place in them anew would take hours."""
    word = "x" * LONGEST
    (tmp_path / "text").write_text(f"a{gap * CHARACTERS}{word} b\n")
    ended = ["<eos>"] if "\n" in gap else []
    assert words(tmp_path / "text") == ["a", *ended, word, "b", "<eos>"]


def test_no_piece_holds_the_whole_text(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("word " * CHARACTERS)
    assert [len(piece) for piece in read_words(tmp_path / "text")][:2] == [209_715, 209_715]


def test_progress_counts_bytes_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("word " * 10)
    told: list[tuple[str, int, int]] = []
    list(read_words(tmp_path / "text", progress=lambda *each: told.append(each)))
    assert told[-1] == ("read text", 50, 50)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "UTF-8"),
        (gzip.compress(b"a b c " * 99, mtime=0)[:-9], "that gzipped"),
        (b"\x1f\x8bnothing", "that gzipped"),
        (b"x" * (CHARACTERS + 1), f"more than {LONGEST} characters"),
        (b"a " + b"x" * (LONGEST + 1) + b" b", f"more than {LONGEST} characters"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(InvalidRequest, match=reason) as caught:
        words(tmp_path / "text")
    assert caught.value.field == "text"
    with pytest.raises(InvalidRequest, match="nowhere"):
        words(tmp_path / "nowhere")
