from __future__ import annotations

import numpy as np
import pytest

from logitsieve.decoding import LocalDecoder
from logitsieve.heads.certified import CertifiedHead
from logitsieve.server.console.why_not import read_parts
from logitsieve.server.console.word_bounds import word_bounds
from tests.synthetic import make_hidden


def test_bounds_of_a_word_are_above_its_logit_and_near_those_of_the_kernel(
    demo: LocalDecoder,
) -> None:
    sketch, bias = read_parts(demo.index)["sketch"], demo.index.softmax.bias
    head = demo.index.head("certified")
    assert isinstance(head, CertifiedHead)
    for hidden in make_hidden(3, seed=9):
        by_kernel = head.bounds(hidden, 1)
        left_out = np.setdiff1d(np.arange(300), by_kernel.ids)
        logits = demo.index.logits(hidden[None], left_out[None].astype(np.int32))[0]
        for word, logit in zip(left_out[::7], logits[::7], strict=True):
            bounds = word_bounds(sketch, float(bias[word]), int(word), hidden)
            assert logit <= bounds.fine + 1e-5
            assert logit <= bounds.coarse + 1e-5
            assert bounds.fine == pytest.approx(by_kernel.upper[word], abs=1e-2)


def test_the_place_is_that_of_the_sketchs_order(demo: LocalDecoder) -> None:
    sketch = read_parts(demo.index)["sketch"]
    for place in (0, 17, 299):
        word = int(sketch["order"][place])
        assert word_bounds(sketch, 0.0, word, make_hidden(1)[0]).place == place
