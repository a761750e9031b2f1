from functools import partial
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads._base import kernel_head
from logitsieve.heads._base.edits import Edits
from logitsieve.heads._base.head import Softmax
from logitsieve.heads.full import FullHead
from logitsieve.heads.sketch import GRADES
from logitsieve.kernels import pool
from logitsieve.kernels.topk.descriptor import shares_of
from logitsieve.kernels.topk.merge import HIGH, LOW, TOP, VALUE
from tests.oracle import best, log_sum_exp, logits64
from tests.synthetic import make_head, make_hidden, make_softmax

SMALL, LARGE = make_softmax(5000, 48), make_softmax(40_000, 64)  # LARGE: 10 MB, five shares


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "make",
    [partial(make_head, "full"), *(partial(make_head, "sketch", max_error=g) for g in GRADES)],
)
def test_the_best_of_all_shares_are_the_best_of_all_rows(make: Any, count: int) -> None:
    head, hidden_states, k = make(SMALL), make_hidden(4, 48), 5
    found = []
    for share in shares_of(head._descriptor, count):
        ids, logits = np.empty((4, k), np.int32), np.empty((4, k), np.float32)
        scanned = np.empty(4, np.int32)
        assert head._kernel(share.ctypes.data, hidden_states, ids, logits, scanned, 0, 4) == 0
        assert (scanned > 0).all()
        found.append(ids)
    exact = logits64(SMALL.weight, SMALL.bias, hidden_states)
    chosen = np.full_like(exact, -np.inf)
    several = np.concatenate(found, axis=1)
    np.put_along_axis(chosen, several, np.take_along_axis(exact, several, 1), 1)
    np.testing.assert_array_equal(best(chosen, k), best(exact, k))


@pytest.mark.parametrize(("rows", "k"), [(1, 1), (5, 7), (31, 3), (40, 3), (1, 40_000)])
def test_answers_do_not_depend_on_the_number_of_threads(rows: int, k: int) -> None:
    hidden_states = make_hidden(rows, 64)
    alone = make_head("full", LARGE).topk(hidden_states, k)
    for threads in (2, 3):
        np.testing.assert_equal(make_head("full", LARGE, threads).topk(hidden_states, k), alone)


def test_a_row_that_is_not_finite_is_refused_by_its_number() -> None:
    hidden_states = make_hidden(3, 64)
    hidden_states[2, 5] = np.nan
    with pytest.raises(InvalidRequest, match=r"hidden_states\[2\]"):
        make_head("full", LARGE, 2).topk(hidden_states, 1)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls each division of work among threads made; with shares of a few rows of W."""
    made: list[int] = []

    def run_all(every: Any, threads: int) -> list[int]:
        made.append(len(every))
        return pool.run_all(every, threads)

    monkeypatch.setattr(kernel_head, "run_all", run_all)
    monkeypatch.setattr(kernel_head, "SHARE_BYTES", 1)
    monkeypatch.setattr(kernel_head, "hand_over_ns", lambda: 1 / 64)
    return made


@pytest.mark.parametrize(
    ("wakes_us", "rate", "shares"), [(1, 20, 2), (1_000, 20, 1), (1_000, 1, 2)]
)
def test_few_bytes_are_not_shared_where_threads_wake_slowly(
    calls: list[int], monkeypatch: pytest.MonkeyPatch, wakes_us: int, rate: int, shares: int
) -> None:
    monkeypatch.setattr(kernel_head, "hand_over_ns", lambda: 1000 * wakes_us)
    monkeypatch.setattr(kernel_head.Head, "bytes_per_ns", rate)
    make_head("full", LARGE, 2).topk(make_hidden(1, LARGE.dim), 1)
    assert calls == [shares] * (shares > 1)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_shares_of_a_scan_sum_every_row_of_w_once(
    calls: list[int], rows: int, threads: int
) -> None:
    """Each share computes the best of the first groups, which hold a fifth of Z or more."""
    weight, bias = SMALL.weight.copy(), np.zeros(5000, np.float32)
    bias[:512] = 1.0
    softmax = Softmax(weight, bias)
    head, hidden_states = make_head("sketch", softmax, threads), make_hidden(rows, 48, scale=0.3)
    hidden_states[0] = 0.0  # no row of W is left out
    exact = logits64(weight, bias, hidden_states)
    for k, scale in ((1, 1.0), (7, 0.5), (20, 1.5)):
        found = head.best_with_log_z(hidden_states, k, scale)
        np.testing.assert_array_equal(found.ids, best(exact, k))
        np.testing.assert_array_equal(found.logits, np.take_along_axis(exact, found.ids, 1))
        true = np.array([log_sum_exp(scale * each) for each in exact])
        off = np.abs(found.log_z[:, VALUE] - true)
        assert off[0] <= 1e-6
        assert (off <= 12 * found.errors).all()
        assert off.max() < 0.06
        again = head.best_with_log_z(hidden_states, k, scale)
        np.testing.assert_equal(again, found)
    assert calls == ([threads] * 6 if threads > 1 else [])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_shares_of_a_pass_prove_log_z(calls: list[int], threads: int) -> None:
    head, hidden_states = FullHead(SMALL, threads=threads), make_hidden(3, 48)
    exact = logits64(SMALL.weight, SMALL.bias, hidden_states)
    ids = np.array([0, 2499, 2500, 4999], np.int32)
    edits = Edits(np.array([0, 4, 4, 4]), ids, np.array([-np.inf, 9.0, 5.0, -np.inf]))
    found = head.best_with_log_z(hidden_states, 9, 0.7)
    np.testing.assert_array_equal(found.ids, best(exact, 9))
    np.testing.assert_array_equal(found.logits, np.take_along_axis(exact, found.ids, 1))
    edited = head.quick_log_z(hidden_states, 0.7, edits)
    exact_edited = exact.copy()
    exact_edited[0, ids] = edits.values
    for fields, logits in ((found.log_z, exact), (edited, exact_edited)):
        true = np.array([log_sum_exp(0.7 * each) for each in logits])
        assert (fields[:, TOP] == 0).all()
        assert (fields[:, LOW] <= true).all()
        assert (true <= fields[:, HIGH]).all()
        assert (np.diff(fields[:, [LOW, VALUE, HIGH]], axis=1) >= 0).all()
        assert (fields[:, HIGH] - fields[:, LOW] < 1e-4).all()
    assert calls == ([threads] * 2 if threads > 1 else [])


def test_a_share_without_mass_leaves_log_z_to_the_others(calls: list[int]) -> None:
    head, hidden_states = FullHead(SMALL, threads=2), make_hidden(1, 48)
    banned = np.arange(2500, 5000, dtype=np.int32)
    edits = Edits(np.array([0, 2500]), banned, np.full(2500, -np.inf))
    fields = head.quick_log_z(hidden_states, 1.0, edits)[0]
    true = log_sum_exp(logits64(SMALL.weight, SMALL.bias, hidden_states)[0, :2500])
    assert fields[LOW] <= true <= fields[HIGH] < fields[LOW] + 1e-4
    assert calls == [2]
