"""CPython's call of a top k in machine code: the answers of Python's own way, objects and all."""

import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Answer, TopK, TopKReply
from logitsieve.kernels.topk.entry import never
from tests.synthetic import make_head, make_hidden, make_softmax

SOFTMAX, HIDDEN = make_softmax(500, 24), make_hidden(6, 24)
HEADS = {
    "exact": make_head("exact", SOFTMAX),
    "proof": make_head("sketch", SOFTMAX),
    "sketch": make_head("sketch", SOFTMAX),
    "screen": make_head("screen", SOFTMAX),
}
EMPTY = np.zeros(0)
ASKED = Answer("m", "1", "d", "h", EMPTY, EMPTY, EMPTY, 0.5, {"a": 1.0}, compute_ns=-1)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize(("rows", "k"), [(1, 1), (1, 5), (6, 3), (2, 500)])
def test_it_answers_as_python_does(name: str, rows: int, k: int) -> None:
    head, hidden = HEADS[name], HIDDEN[:rows].copy()
    found, wanted = head.topk(hidden, k), head._answer_checked(hidden, rows, k)
    assert type(found) is TopK
    for mine, theirs in zip(found, wanted, strict=True):
        assert (mine.dtype, mine.flags.owndata) == (theirs.dtype, True)
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", HEADS)
def test_a_reply_has_the_example_and_its_own_fields(name: str) -> None:
    head = HEADS[name]
    reply, top = head.entry(ASKED)(HIDDEN, 2), head.topk(HIDDEN, 2)
    assert (type(reply), type(reply.answer)) == (TopKReply, Answer)
    np.testing.assert_equal((*reply[:2], *reply.answer[4:7]), tuple(top))
    assert reply.answer.compute_ns > 0
    unlike = {"exact", "scanned", "fallback", "compute_ns"}
    for field in set(Answer._fields) - unlike:
        assert getattr(reply.answer, field) == getattr(ASKED, field)
    reply.answer.knobs["a"] = 2.0  # type: ignore[index]
    assert ASKED.knobs == {"a": 1.0}


def of_another_type() -> list[Any]:
    wide = np.zeros((2, 48), np.float32)
    swapped = HIDDEN.astype(HIDDEN.dtype.newbyteorder())
    return [
        HIDDEN[0], HIDDEN[:, :12], HIDDEN[:0], HIDDEN.astype(np.float64), HIDDEN.view(np.int32),
        wide[:, ::2], HIDDEN.tolist(), np.ma.array(HIDDEN), np.asfortranarray(HIDDEN), None,
        swapped, HIDDEN[None],
    ]  # fmt: skip


def test_python_looks_at_every_other_request() -> None:
    enter = make_head("exact", SOFTMAX)._enter
    for hidden in of_another_type():
        assert enter(hidden, 1) is None
    for k in (0, -1, 501, 1 << 63, -(1 << 70), True, 1.0, None, np.int64(1), "1"):
        assert enter(HIDDEN, k) is None
    assert enter(HIDDEN) is None  # type: ignore[call-arg]
    assert enter(HIDDEN, 1, 1) is None  # type: ignore[call-arg]


def test_a_refused_row_and_rows_without_an_answer_are_left() -> None:
    bad = HIDDEN.copy()
    bad[4, 3] = np.nan
    status, top = make_head("exact", SOFTMAX)._enter(bad, 2)
    assert (status, type(top)) == (-5, TopK)
    with pytest.raises(InvalidRequest, match=r"hidden\[4\]"):
        make_head("exact", SOFTMAX).topk(bad, 2)
    screen = make_head("screen", SOFTMAX)
    status, top = screen._enter(HIDDEN, 499)
    assert (status, top.scanned.tolist()) == (6, [-1] * 6)
    assert screen.topk(HIDDEN, 499).fallback.all()


def test_threads_leave_several_rows_to_python() -> None:
    assert make_head("exact", SOFTMAX, 2)._enter(HIDDEN, 2) is None
    assert type(make_head("exact", SOFTMAX, 2)._enter(HIDDEN[:1], 2)) is TopK
    assert make_head("lsh", SOFTMAX)._enter is never


def test_no_reference_is_lost_or_kept() -> None:
    head, bad = make_head("screen", SOFTMAX), np.full((1, 24), np.nan, np.float32)
    enters = head._enter, head.entry(ASKED)
    counted = [None, ASKED.model, ASKED.knobs, TopK, Answer, TopKReply, HIDDEN, bad, 5]
    counted += [np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.bool_), ASKED, 2**40]

    def counts() -> list[int]:
        gc.collect()
        return [sys.getrefcount(each) for each in counted] + [len(gc.get_objects())]

    def ask() -> None:
        for enter in enters:
            for hidden, k in [(HIDDEN, 2), (HIDDEN, 499), (bad, 1), (HIDDEN, 2**40), (None, 5)]:
                enter(hidden, k)

    def change() -> int:
        before = counts()
        for _ in range(300):
            ask()
        return max(abs(x - y) for x, y in zip(before, counts(), strict=True))

    ask()
    assert min(change() for _ in range(3)) < 100  # threads of other tests make objects, too


def test_an_entry_owns_its_head_and_may_be_called_by_threads() -> None:
    enter = make_head("screen", SOFTMAX)._enter
    wanted = make_head("screen", SOFTMAX).topk(HIDDEN, 4)
    gc.collect()
    found: list[TopK] = []

    def ask() -> None:
        found.extend(enter(HIDDEN, 4) for _ in range(50))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 200
    for top in found:
        np.testing.assert_equal(top[:2], wanted[:2])
