"""Small file operations that refuse by name: every failure is an IndexUnreadable."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from logitsieve.api.errors import IndexUnreadable

LEGIBLE = 300  # characters of a reason


def unreadable(path: Path, error: object) -> IndexUnreadable:
    """IndexUnreadable for a reason that quotes the file: bounded, control characters escaped."""
    text = str(error)[:LEGIBLE]
    return IndexUnreadable(path, text if text.isprintable() else ascii(text)[1:-1])


@contextmanager
def as_unreadable(path: Path) -> Iterator[None]:
    """Turn an OSError about `path`, or a ValueError about its contents, into IndexUnreadable."""
    try:
        yield
    except FileNotFoundError as error:
        raise IndexUnreadable(path, "missing") from error
    except OSError as error:
        raise IndexUnreadable(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise unreadable(path, error) from error


def regular(path: Path) -> os.stat_result:
    """The status of a regular file; anything else (a pipe would block) is refused."""
    with as_unreadable(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise IndexUnreadable(path, "not a regular file")
    return status


def read_small(path: Path, limit: int) -> bytes:
    """All bytes of a file of at most `limit` bytes."""
    size = regular(path).st_size
    if size > limit:
        raise IndexUnreadable(path, f"{size} bytes, at most {limit} are read")
    with as_unreadable(path):
        return path.read_bytes()


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
