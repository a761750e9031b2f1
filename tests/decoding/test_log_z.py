"""Numbers that are printed are rounded down, whatever they are."""

from __future__ import annotations

import numpy as np

from logitsieve.decoding.log_z import rounded_down

LEAST = float(np.finfo(np.float32).min)


def test_rounded_down_is_the_largest_float32_that_is_not_above() -> None:
    values = np.array([0.1, 0.5, -0.1, -0.0, LEAST, 1.0000001 * LEAST, -np.inf])
    down = rounded_down(values)
    assert (down <= values).all()
    assert (np.nextafter(down[:4], np.float32(np.inf)) > values[:4]).all()
    np.testing.assert_array_equal(down[4:], np.array([LEAST, -np.inf, -np.inf], np.float32))
