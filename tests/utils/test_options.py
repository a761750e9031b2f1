"""Options' ranges, and what is said of a value outside them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.utils.options import check_range, option


@dataclass(frozen=True, kw_only=True)
class Options:
    rows: int = option(4, "rows a call", 1, 64)
    share: float = option(0.5, "of the rows", 0.0, 1.0)
    seed: int | None = option(None, "of the noise", 0, 9)

    def __post_init__(self) -> None:
        for each in fields(self):
            check_range(each.name, getattr(self, each.name), each.type, each.metadata)


def test_values_in_their_ranges_are_taken() -> None:
    made = Options(rows=64, share=1, seed=9)
    assert (made.rows, made.share, made.seed) == (64, 1, 9)
    assert Options().seed is None
    assert fields(Options)[0].metadata["help"] == "rows a call"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *[("rows", value, "an integer from 1 to 64") for value in (0, 65, 1.0, True, None)],
        *[("share", value, "a number from 0 to 1") for value in (-0.1, 2, "1", False)],
        *[("seed", value, "an integer from 0 to 9") for value in (-1, 0.5)],
    ],
)
def test_others_are_refused_by_name(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(InvalidRequest, match=allowed) as caught:
        Options(**{name: value})
    assert caught.value.field == name
