from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from logitsieve.evaluation.precision import hits
from logitsieve.index import Index
from logitsieve.index.contents import read_contents
from logitsieve.index_builder.report_cascade import trace


def test_the_cascade_is_that_of_the_head_at_each_threshold(make: Callable[..., Index]) -> None:
    index = make()
    hidden = np.random.default_rng(0).standard_normal((400, index.dim)).astype(np.float32)
    curve = trace(index, hidden, read_contents(index.path).parts["screen"])
    assert curve.coverage[-1] == 1
    assert curve.stored == 1
    cosines = np.abs(hidden[:, 0]) / np.linalg.norm(hidden, axis=1)
    truth = index.head("exact").topk(hidden, 5)
    for place in (9, 50, 98):
        escalate = np.quantile(cosines, 1 - curve.coverage[place])
        head = index.head("screen", escalate=float(escalate))
        for k in (1, 5):
            top = head.topk(hidden, k)
            right = hits(top, truth, k) / k
            assert curve.precision[k][place] == pytest.approx(right.mean(), abs=1 / len(hidden))
            own = right[~top.exact].mean()
            assert curve.own[k][place] == pytest.approx(own, abs=1 / (~top.exact).sum())
        assert curve.scanned[place] == pytest.approx(top.scanned.mean(), abs=index.vocab_size / 400)
