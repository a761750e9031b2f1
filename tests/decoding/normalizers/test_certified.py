"""Proven intervals of log Z."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.normalizers import interval
from tests.decoding.normalizers.normalized import CONSTRAINTS, SCALES, normalized, truth


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_certified_is_an_interval_that_holds_it(
    decoder: LocalDecoder, constraints: str, scale: float
) -> None:
    asked = CONSTRAINTS[constraints]
    found, wanted = (
        normalized(decoder, "certified", constraints=asked, scale=scale),
        truth(asked, scale),
    )
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert (found.low <= found.value).all()
    assert (found.value <= found.high).all()
    listed = found.low == found.high  # all that remains was named, and computed: as printed
    np.testing.assert_allclose(found.value[listed], wanted[listed], rtol=3e-7, atol=3e-7)
    assert (found.low <= wanted)[~listed].all()
    assert (wanted <= found.high)[~listed].all()


@settings(max_examples=100, deadline=None)
@given(
    value=st.floats(-1e45, 1e45),
    below=st.floats(0, 1e3) | st.just(float("inf")),
    above=st.floats(0, 1e3),
)
def test_an_interval_is_rounded_outward(value: float, below: float, above: float) -> None:
    found = interval(np.array([[value, value - below, value + above]]))
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert float(found.low[0]) <= value - below
    assert value + above <= float(found.high[0])
    assert found.low[0] <= found.value[0] <= found.high[0]
