"""Errors of writing that say which file could not be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def name_in_errors(file: Path) -> Iterator[None]:
    """An OSError that is raised here names `file`: of a full disk it names none by itself."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise
