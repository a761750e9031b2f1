"""Checks of the errors for wrong arguments and damaged indexes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logitsieve.api.errors import IndexUnreadable, InvalidRequest


@contextmanager
def refused(field: str, match: str | None = None) -> Iterator[None]:
    """Require an InvalidRequest that names `field`, and says `match` if that is given."""
    with pytest.raises(InvalidRequest, match=match) as caught:
        yield
    assert caught.value.field == field


@contextmanager
def unreadable(file: Path, reason: str = "", most: int = 1500) -> Iterator[None]:
    """Require an IndexUnreadable that names `file` and says `reason`, in `most` characters."""
    with pytest.raises(IndexUnreadable) as caught:
        yield
    assert caught.value.file == file
    assert reason in caught.value.reason
    assert caught.value.reason.isprintable()
    assert len(caught.value.reason) <= most
