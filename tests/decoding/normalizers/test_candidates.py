"""log Z over candidates and edited ids, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.logit_edits import edits_of
from tests.decoding.drawn import edited_logits
from tests.decoding.normalizers.normalized import CONSTRAINTS, HIDDEN, SOFTMAX, normalized
from tests.oracle import log_sum_exp, logits64


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 1e5])
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_candidates_is_over_what_was_scanned_and_what_was_edited(
    decoder: LocalDecoder, constraints: str, scale: float
) -> None:
    asked = CONSTRAINTS[constraints]
    value = normalized(decoder, "candidates", constraints=asked, scale=scale).value
    assert value is not None
    found = decoder.index.head("screen").candidates(HIDDEN, 5)
    logits = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
    edits = None
    if asked is not None:
        logits = edited_logits(SOFTMAX, HIDDEN, asked)
        edits = edits_of(SOFTMAX, asked, HIDDEN)
    for row in range(5):
        inside = set(found.ids[found.offsets[row] : found.offsets[row + 1]].tolist())
        if edits is not None:
            inside |= set(edits.ids[edits.offsets[row] : edits.offsets[row + 1]].tolist())
        open_ = [i for i in sorted(inside) if logits[row, i] > -np.inf]
        if not open_:
            assert value[row] == -np.inf
            continue
        wanted = log_sum_exp(logits[row, open_] * scale)
        assert value[row] == pytest.approx(wanted, rel=3e-7, abs=3e-7)
