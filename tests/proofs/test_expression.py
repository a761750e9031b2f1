"""Expressions that theorems read from the kernels give what the kernels compute."""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from logitsieve.kernels.simd import exponential
from logitsieve.kernels.sketch import certified_topk, thresholds
from logitsieve.kernels.topk import scan
from logitsieve.kernels.topk.queries import SLACK
from proofs.expression import Symbol, assigned, text_of, traced

RANDOM = np.random.default_rng(5)
W, M = Symbol("w", "d"), Symbol("m", "d")


def evaluated(text: Symbol, **values: float) -> float:
    """A text of Gappa's without fused operations, in numpy."""
    code = re.sub(r"\|(\w+)\|", r"abs(\1)", text.text)
    code = re.sub(r"(\d+)b(-?\d+)", r"(\1 * 2.0 ** \2)", code)
    formats = {"f": np.float32, "d": np.float64}
    return float(eval(code, {**formats, **values}))


@pytest.mark.parametrize("function", [thresholds.reached_by, certified_topk._above])
def test_a_function_is_traced_as_it_computes(function: Any) -> None:
    text: Any = traced(function, W, M, fused=False).returned
    for w, m in RANDOM.normal(size=(100, 2)) * 10.0 ** RANDOM.integers(-6, 7, (100, 2)):
        assert evaluated(text, w=w, m=abs(m)) == function.py_func(w, abs(m))


def _halves(w: Any) -> Any:
    low = 0.5 * w
    return low, w - 0.25 * low


def test_results_and_assignments_are_traced() -> None:
    texts = traced(SimpleNamespace(py_func=_halves, __name__="_halves"), W).returned
    for w in RANDOM.normal(size=100):
        assert [evaluated(text, w=w) for text in texts] == list(_halves(w))
    text = assigned(scan.decide, "state[THRESHOLD]", values={0: W}, state={SLACK: M})
    assert text.text == f"d(d(w - m) - d({text_of(scan.ROUNDING64)} * |w|))"
    floor = assigned(scan.decide_above, "floor", ranked=W, state={SLACK: M}, ROUNDING32=0.5)
    assert floor.text == "d(d(w - (2b0 * m)) - d(1b-1 * |w|))"


@pytest.mark.parametrize("fused", [True, False])
def test_lanes_round_once_where_they_are_fused(fused: bool) -> None:
    found = traced(exponential.exp_lanes, Symbol("x", "f"), fused=fused, named=("n", "r"))
    high, low = text_of(-exponential.LN2_HIGH), text_of(-exponential.LN2_LOW)
    products = [f"n * {high}", f"n * {low}"]
    high, low = products if fused else [f"f({product})" for product in products]
    assert found.locals["r"] == f"f(f(x + {high}) + {low})"
    assert found.returned.text.count("r") == len(exponential.SERIES) - 1
