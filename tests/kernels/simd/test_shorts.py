"""Steps and starts of codes; index_builder/fit/test_levels.py judges what they stand for."""

import numpy as np

from logitsieve.kernels.simd.shorts import LAST, STEPS, shorts_of, start_of, step_of

LEAST = 2e-30


def test_the_finer_step_and_what_is_below_all_codes() -> None:
    near, far = np.array([0.01, 1], np.float32), np.array([1e-3, 1], np.float32)
    none = np.full(2, LEAST, np.float32)
    assert step_of(iter([near, none]), LEAST) == STEPS[0]
    assert step_of(iter([near, far]), LEAST) == STEPS[1]
    values = np.array([1e-20, 1], np.float32)
    start = start_of(values, 11, LEAST)
    assert shorts_of(values, start, 11, up=True).tolist() == [0, LAST]
