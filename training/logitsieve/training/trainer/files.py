"""Files that are there whole or not at all, whenever the process dies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO


def replace(file: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a new file beside `file`, then put it in its place at once."""
    beside = file.with_name(f".tmp-{file.name}")
    with beside.open("wb") as stream:
        write(stream)
        stream.flush()
        os.fsync(stream.fileno())  # or a machine that dies might leave the name and no content
    beside.replace(file)


def replace_bytes(file: Path, content: bytes) -> None:
    """The same for content that is at hand."""
    replace(file, lambda stream: stream.write(content))
