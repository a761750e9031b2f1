"""What a wrong argument has to lead to."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from logitsieve.api.errors import InvalidRequest


@contextmanager
def refused(field: str, match: str | None = None) -> Iterator[None]:
    """Require an InvalidRequest that names `field`, and says `match` if that is given."""
    with pytest.raises(InvalidRequest, match=match) as caught:
        yield
    assert caught.value.field == field
