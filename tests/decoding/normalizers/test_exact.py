"""The exact log Z, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.normalizers import EXACT
from tests.decoding.normalizers.normalized import CONSTRAINTS, HIDDEN, SCALES, normalized, truth


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_exact_is_over_the_vocabulary_whatever_head_answers(
    decoder: LocalDecoder, constraints: str, scale: float
) -> None:
    asked = CONSTRAINTS[constraints]
    for head in decoder.index.heads:
        found = normalized(decoder, "exact", constraints=asked, head=head, scale=scale)
        assert found.value is not None
        assert found[1:] == (None, None, None)
        np.testing.assert_allclose(found.value, truth(asked, scale), rtol=3e-7, atol=3e-7)


def test_slices_do_not_change_a_row(decoder: LocalDecoder) -> None:
    """One row in each slice, and all in one."""
    hidden = np.repeat(HIDDEN, 3000, axis=0)
    exact = decoder.index.head("exact")
    many = EXACT.log_z(decoder.index, exact, hidden, 1, None, 1.0).value
    few = EXACT.log_z(decoder.index, exact, HIDDEN, 1, None, 1.0).value
    assert few is not None
    np.testing.assert_array_equal(many, np.repeat(few, 3000))
