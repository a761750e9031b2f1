from __future__ import annotations

import numpy as np
import pytest

from logitsieve.evaluation import us_per_row
from logitsieve.types.results import ArrayLike, TopK
from tests.synthetic import make_head, make_hidden, make_softmax


class Recorder:
    """A head that remembers what it was asked."""

    def __init__(self) -> None:
        self.firsts: list[float] = []
        self.shapes: list[tuple[int, ...]] = []
        self.warmed = 0

    def warm(self) -> None:
        self.warmed += 1

    def topk(self, hidden: ArrayLike, k: int) -> TopK:
        self.firsts.append(float(np.asarray(hidden)[0, 0]))
        self.shapes.append(np.shape(hidden))
        return make_head("exact", make_softmax(vocab_size=20)).topk(hidden, k)


@pytest.mark.parametrize(("rows", "batch"), [(20, 8), (5, 8), (9, 1)])
def test_every_timed_call_has_the_same_rows(rows: int, batch: int) -> None:
    head = Recorder()
    assert us_per_row(head, make_hidden(rows), 2, batch, calls=6) > 0
    assert head.warmed == 1
    assert head.shapes == [(batch, 24)] * 7


def test_fewer_calls_than_batches_are_spread_over_the_rows() -> None:
    head, hidden = Recorder(), make_hidden(10)
    us_per_row(head, hidden, 2, 1, calls=3)
    assert head.firsts == hidden[[0, 0, 3, 6], 0].tolist()
