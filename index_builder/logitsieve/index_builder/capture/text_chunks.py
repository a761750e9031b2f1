"""Read a text file, plain or gzipped, in chunks of lines or in windows of tokens."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from logitsieve.api.errors import InvalidRequest
from logitsieve.utils.environment import reason_of

CHARACTERS = 1 << 16  # of a chunk, before the rest of its last line
TEXT = "UTF-8 text, or that gzipped"
LONGEST_CHUNK = 1 << 17  # characters tokenized at once
GZIPPED, ENCODING = b"\x1f\x8b", "utf-8-sig"


def text_chunks(path: Path, field: str = "text") -> Iterator[str]:
    """Yield chunks of full lines; InvalidRequest names `field` if it cannot be read."""
    try:
        with path.open("rb") as raw:
            gzipped = raw.read(len(GZIPPED)) == GZIPPED
        with (gzip.open if gzipped else open)(path, "rt", encoding=ENCODING) as file:
            while lines := file.readlines(CHARACTERS):
                yield "".join(lines)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InvalidRequest(field, f"{path}: {reason_of(error)}", TEXT) from error


class CountedText:
    def __init__(self, path: Path, tokenize: Callable[[str], list[int]]) -> None:
        self._tokenize, self._characters = tokenize, sum(map(len, text_chunks(path)))
        self._read = self._made = 0

    def tokenize(self, text: str) -> list[int]:
        ids = self._tokenize(text)
        self._read, self._made = self._read + len(text), self._made + len(ids)
        return ids

    @property
    def tokens(self) -> int:
        return round(self._made * self._characters / self._read) if self._read else 0


def token_windows(
    path: Path, tokenize: Callable[[str], list[int]], begin: list[int], window: int
) -> Iterator[list[int]]:
    """Yield `begin` and tokens of `path`, at most `window` in all; InvalidRequest names `text`."""
    length, ids, empty = window - len(begin), list[int](), True
    for chunk in text_chunks(path):
        for start in range(0, len(chunk), LONGEST_CHUNK):  # of a line that is longer
            ids += tokenize(chunk[start : start + LONGEST_CHUNK])
        empty = empty and not ids
        for start in range(0, len(ids) - length + 1, length):
            yield begin + ids[start : start + length]
        del ids[: len(ids) // length * length]
    if empty:
        raise InvalidRequest("text", f"{path}, of no tokens", "text of one token or more")
    if ids:
        yield begin + ids
