"""Sweeps of which `make test` runs a part."""

from collections.abc import Collection
from typing import Any

import pytest


def swept(cases: Collection[Any], kept: Collection[Any]) -> list[Any]:
    """All cases as parameters, those outside of `kept` for `make test-all` alone."""
    marks = {True: (), False: pytest.mark.exhaustive}
    return [pytest.param(*case, marks=marks[case in kept]) for case in cases]
