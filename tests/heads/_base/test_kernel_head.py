"""The one way from a kernel's status to an answer, shown with a kernel in Python."""

import numpy as np
import pytest

from logitsieve.api.results import ArrayLike, Candidates, Float32, Int32
from logitsieve.heads import ExactHead
from logitsieve.heads._base.head import Knob, by_knob
from logitsieve.heads._base.kernel_head import Head, replace_rows, unproven
from tests.synthetic import make_hidden, make_softmax

SOFTMAX, HIDDEN = make_softmax(40, 6), make_hidden(70, 6)
EXACT = ExactHead(SOFTMAX)


class FirstRows(Head):
    """Answers with ids 0, 1, ..., but for rows of hidden that begin below `least`."""

    name = "first"
    knob_table = by_knob(least=Knob(help="", default=-9.0, low=-9.0, high=9.0, whole=False))
    limits = by_knob(least=lambda *_: 5)

    def _kernel(
        self,
        address: int,
        hidden: Float32,
        ids: Int32,
        logits: Float32,
        scanned: Int32,
        start: int,
        stop: int,
    ) -> int:
        assert address == SOFTMAX.descriptor.ctypes.data
        for row in range(start, stop):
            ids[row], logits[row] = np.arange(ids.shape[1]), 0.0
            scanned[row] = -1 if hidden[row, 0] < self.knobs["least"] else ids.shape[1]
        return int((scanned[start:stop] < 0).sum())

    def candidates(self, hidden: ArrayLike, k: int) -> Candidates:
        rows = np.asarray(hidden)
        lengths = np.where(rows[:, 0] < self.knobs["least"], 0, k)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ids = np.tile(np.arange(k, dtype=np.int32), int((lengths > 0).sum()))
        return self._fill_short(unproven(offsets, ids, np.zeros(ids.size, np.float32)), rows, k)


def first_rows(threads: int = 1, least: float = 0.0) -> FirstRows:
    return FirstRows(SOFTMAX, fallback=EXACT, threads=threads, knobs={"least": least})


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_without_an_answer_get_the_fallbacks(threads: int) -> None:
    top, exact = first_rows(threads).topk(HIDDEN, 3), EXACT.topk(HIDDEN, 3)
    short = HIDDEN[:, 0] < 0
    assert 0 < short.sum() < len(HIDDEN)
    for field in ("ids", "logits", "exact", "scanned"):
        np.testing.assert_array_equal(getattr(top, field)[short], getattr(exact, field)[short])
    assert (top.ids[~short] == np.arange(3)).all()
    assert (top.exact == short).all()


def test_short_rows_get_the_fallbacks_candidates() -> None:
    candidates, exact = first_rows().candidates(HIDDEN, 3), EXACT.candidates(HIDDEN, 3)
    short = HIDDEN[:, 0] < 0
    assert np.diff(candidates.offsets).tolist() == np.where(short, 40, 3).tolist()
    assert (candidates.upper == np.where(short, -np.inf, np.inf)).all()
    for row in np.flatnonzero(short):
        mine = slice(candidates.offsets[row], candidates.offsets[row + 1])
        theirs = slice(exact.offsets[row], exact.offsets[row + 1])
        np.testing.assert_array_equal(candidates.logits[mine], exact.logits[theirs])


def test_rows_are_replaced_wherever_they_stand() -> None:
    def csr(lengths: list[int], first: int) -> Candidates:
        offsets = np.cumsum([0, *lengths])
        ids = np.arange(first, first + offsets[-1], dtype=np.int32)
        return unproven(offsets, ids, ids.astype(np.float32))

    other = csr([2, 0], 100)._replace(upper=np.array([1, 2], np.float32))
    joined = replace_rows(csr([1, 2, 0, 1], 0), np.array([True, False, True, False]), other)
    assert joined.offsets.tolist() == [0, 2, 4, 4, 5]
    assert joined.ids.tolist() == [100, 101, 1, 2, 3]
    assert joined.upper.tolist() == [1, np.inf, 2, np.inf]
