from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.evaluation.precision import hits
from logitsieve.index import Index
from logitsieve.server.console.cascade import cascade_facts
from tests.server.console.conftest import KEPT


def test_the_cascade_is_that_of_the_head_at_each_threshold(circle: Callable[..., Index]) -> None:
    index = circle()
    hidden = np.random.default_rng(0).standard_normal((400, index.dim)).astype(np.float32)
    facts = cascade_facts(LocalDecoder(index), hidden)
    assert (facts["rows"], facts["coverage"][-1], facts["stored"]) == (400, 1, 1)
    cosines = np.abs(hidden[:, 0]) / np.linalg.norm(hidden, axis=1)
    truth = index.head("exact").topk(hidden, 5)
    for place in (9, 50, 98):
        escalate = np.quantile(cosines, 1 - facts["coverage"][place])
        head = index.head("screen", escalate=float(escalate))
        for k in (1, 5):
            top = head.topk(hidden, k)
            right = hits(top, truth, k) / k
            assert facts["precision"][str(k)][place] == pytest.approx(right.mean(), abs=1 / 400)
            own = right[~top.exact].mean()
            near = 1 / (~top.exact).sum()
            assert facts["own"][str(k)][place] == pytest.approx(own, abs=near)
        assert facts["scanned"][place] == pytest.approx(
            top.scanned.mean(), abs=index.vocab_size / 400
        )


def test_the_kept_contexts_stand_in(demo: LocalDecoder, bare: LocalDecoder) -> None:
    assert cascade_facts(demo)["rows"] == KEPT
    with pytest.raises(InvalidRequest, match="a screen"):
        cascade_facts(bare)


def test_without_contexts(circle: Callable[..., Index]) -> None:
    with pytest.raises(InvalidRequest, match="keeps none"):
        cascade_facts(LocalDecoder(circle()))
