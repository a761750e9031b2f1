"""log Z in double-double arithmetic against fifty decimal digits."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest

from logitsieve.kernels.sampling.double_double import ERROR
from tests.kernels.sampling.test_log_z import MAKERS, Make, made


@pytest.mark.parametrize(("V", "D"), [(1, 1), (2, 3), (300, 40)])
@pytest.mark.parametrize("make", MAKERS)
def test_it_is_that_of_fifty_digits(make: Make, V: int, D: int) -> None:
    head, hidden, logits = made(make, V, D)
    found = head.close_log_z(hidden[:2])
    np.testing.assert_array_equal(found[:, 0], logits[:2].max(axis=1))
    with localcontext() as context:
        context.prec = 60
        for row in range(2):
            top = Decimal(float(logits[row].max()))
            total = sum((Decimal(x) - top).exp() for x in logits[row].tolist())
            off = sum(map(Decimal, found[row, 1:].tolist())) - Decimal(total).ln()
            assert abs(off) <= Decimal(ERROR)
