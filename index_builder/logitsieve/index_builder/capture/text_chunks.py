"""A text file, plain or gzipped, in pieces that end at the end of a line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from logitsieve.api.errors import InvalidRequest

CHARACTERS = 1 << 16  # of a piece, up to the end of the line
TEXT = "a text file, or one that is gzipped"


def text_chunks(path: Path) -> Iterator[str]:
    """The pieces of `path` in order; InvalidRequest names `text` where it cannot be read."""
    reader = gzip.open if path.suffix == ".gz" else open
    try:
        with reader(path, "rt", encoding="utf-8") as file:
            while lines := file.readlines(CHARACTERS):
                yield "".join(lines)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InvalidRequest("text", f"{path}: {error}", TEXT) from error
