"""Sweeps of which `make test` runs a part."""

from collections.abc import Collection
from typing import Any

import pytest


def swept(cases: Collection[Any], kept: Collection[Any]) -> list[Any]:
    """All cases as parameters, those outside of `kept` for `make test-all` alone."""
    assert set(kept) <= set(cases)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in kept else pytest.mark.exhaustive,
        )
        for case in cases
    ]
