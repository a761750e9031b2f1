from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.results import Float64
from logitsieve.evaluation.evidence import MeasuredPrecision, combined_low, contradicts, rows_needed
from logitsieve.evaluation.precision import lower_bound

BUILT = MeasuredPrecision(0.9986, 0.9981, 50_000)


def evidence(share_N: Float64) -> MeasuredPrecision:
    return MeasuredPrecision(float(share_N.mean()), lower_bound(share_N), len(share_N))


def test_fewer_rows_that_agree_take_nothing_back() -> None:
    fewer = MeasuredPrecision(0.9986, 0.9978, 10_000)
    assert combined_low(fewer, BUILT) == 0.9981
    assert combined_low(fewer._replace(mean=0.9984, low=0.9975), BUILT) == 0.9981


def test_without_the_builds_evidence_the_new_rows_count() -> None:
    assert combined_low(MeasuredPrecision(0.9986, 0.9978, 10_000), None) == 0.9978


@pytest.mark.parametrize("rows", [100, 10_000, 10**6])
def test_rows_that_contradict_the_build_count_alone(rows: int) -> None:
    harder = MeasuredPrecision(0.99, 0.985, rows)
    assert contradicts(harder, BUILT)
    assert combined_low(harder, BUILT) == 0.985
    easier = MeasuredPrecision(0.9999, 0.9998, rows)
    assert contradicts(easier, BUILT)
    assert combined_low(easier, BUILT) == 0.9998


def test_as_many_rows_are_pooled() -> None:
    as_many = MeasuredPrecision(0.9984, 0.9978, 50_000)
    low = combined_low(as_many, BUILT)
    assert low == pytest.approx(0.9985 - np.hypot(0.0006, 0.0005) / 2)
    assert max(as_many.low, BUILT.low) < low < 0.9985
    many = combined_low(as_many._replace(rows=10**9), BUILT)
    assert many == pytest.approx(as_many.low, abs=1e-6)


@pytest.mark.parametrize(("built", "new"), [(5000, 1000), (3000, 3000), (1000, 5000)])
@pytest.mark.parametrize("precision", [0.98, 0.998])
def test_the_bound_of_both_holds_in_95_of_100_samples(
    built: int, new: int, precision: float
) -> None:
    random, trials, held = np.random.default_rng(0), 400, 0
    for _ in range(trials):
        first, second = (
            evidence((random.random(rows) < precision).astype(np.float64)) for rows in (built, new)
        )
        held += combined_low(second, first) <= precision
    assert held >= 0.93 * trials  # 0.95, and what chance takes from 400 trials at most


def test_a_harder_text_is_found_out() -> None:
    """Of contexts that miss thrice as often, a fifth of the build's rows are enough."""
    random, left = np.random.default_rng(1), 0
    for _ in range(100):
        first = evidence((random.random(20_000) < 0.998).astype(np.float64))
        second = evidence((random.random(4_000) < 0.994).astype(np.float64))
        left += combined_low(second, first) == second.low
    assert left >= 95


def test_rows_that_would_decide() -> None:
    new = MeasuredPrecision(0.9986, 0.9978, 10_000)
    needed = rows_needed(new, None, 0.998)
    assert needed == pytest.approx(10_000 * (0.0008 / 0.0006) ** 2, abs=1)
    with_build = rows_needed(new, MeasuredPrecision(0.9984, 0.9976, 9_000), 0.998)
    assert needed is not None
    assert with_build is not None
    assert with_build < needed
    assert rows_needed(new, None, 0.9978) == 10_000  # nothing is missing
    assert rows_needed(new, None, 0.9987) is None  # more than the mean
    perfect = MeasuredPrecision(1.0, lower_bound(np.ones(500)), 500)
    found = rows_needed(perfect, None, 0.998)
    assert found is not None
    assert lower_bound(np.ones(found)) >= 0.998 > lower_bound(np.ones(found - 1))
