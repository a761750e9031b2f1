"""Words of a text file, plain or gzipped, in pieces: the text is never in memory as a whole."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import IO, cast

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer.vocabulary import END
from logitsieve.utils.options import Progress, no_progress

CHARACTERS = 1 << 20  # read at once
LONGEST = 1 << 16  # characters of a word: a file with a longer one is no text in words
GZIPPED = b"\x1f\x8b"


def read_words(
    path: Path, field: str = "text", progress: Progress = no_progress
) -> Iterator[list[str]]:
    """Lists of words, split by white space; each line that is not empty ends with `<eos>`.

    `progress` gets ("read NAME", bytes read, size of the file). InvalidRequest names `field` where
    the file is no UTF-8 text, or cannot be read.
    """
    try:
        with path.open("rb") as file, _open(file) as text:
            size = path.stat().st_size
            for words in _split(text, field):
                progress(f"read {path.name}", file.tell(), size)
                yield words
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidRequest(field, f"{path} ({error})", "UTF-8 text, or that gzipped") from error


def _open(file: IO[bytes]) -> TextIOWrapper:
    gzipped = file.read(len(GZIPPED)) == GZIPPED
    file.seek(0)
    return TextIOWrapper(
        cast(IO[bytes], gzip.open(file)) if gzipped else file, encoding="utf-8-sig"
    )


def _split(file: TextIOWrapper, field: str) -> Iterator[list[str]]:
    rest, begun = "", False  # a word that may go on in the next piece; a line that is to be ended
    reading: Callable[[], str] = lambda: file.read(CHARACTERS)  # noqa: E731 - `iter` wants a call
    for piece in iter(reading, ""):
        text = rest + piece
        rest = "" if text[-1].isspace() else text.rsplit(None, 1)[-1]
        words, begun = _words(text[: len(text) - len(rest)], begun)
        if max(map(len, [*words, rest])) > LONGEST:
            got = f"a word of more than {LONGEST} characters"
            raise InvalidRequest(field, got, "words, split by spaces")
        yield words
    yield _words(rest + "\n", begun)[0]


def _words(text: str, begun: bool) -> tuple[list[str], bool]:
    """Words and ends of lines, and whether the last line has words that nothing ended yet."""
    words: list[str] = []
    *ended, last = text.split("\n")
    for line in ended:
        found = line.split()
        words += found
        if found or begun:
            words.append(END)
        begun = False
    found = last.split()
    return words + found, begun or bool(found)
