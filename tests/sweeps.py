"""Sweeps of which `make test` runs a part."""

from collections.abc import Collection
from typing import Any

import pytest


def swept(cases: Collection[Any], kept: Collection[Any]) -> list[Any]:
    """All cases as parameters, those outside of `kept` for `make test-all` alone."""
    rest = pytest.mark.exhaustive
    return [pytest.param(*case, marks=() if case in kept else rest) for case in cases]
