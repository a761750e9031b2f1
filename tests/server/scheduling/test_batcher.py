"""Who shares a batch, who is cut, who is refused; and that no answer depends on it."""

import asyncio
from time import monotonic
from typing import Any, cast

import numpy as np
import pytest

from logitsieve.api.errors import DeadlineExceeded, InvalidRequest, Overloaded
from logitsieve.api.requests import TopKRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.engine import LocalEngine
from logitsieve.server.scheduling.batcher import Batch, Batcher
from logitsieve.server.scheduling.executor import compute, joined
from logitsieve.server.scheduling.request import (
    BATCH_ROWS,
    PreparedRequest,
    QueuedRequest,
    RunningMean,
)
from tests.server.test_congruence import assert_same
from tests.synthetic import make_hidden

US = 1000.0  # a row: batches have BATCH_ROWS rows
NO_POINT = cast(LocalEngine, "a point")


def batcher(**options: Any) -> Batcher:
    return Batcher(**{"workers": 1, "max_in_flight": 100, "max_rows": 1000, "delay_s": 0} | options)


def waiting(
    rows: int | np.ndarray,
    k: int = 3,
    point: LocalEngine = NO_POINT,
    *,
    independent: bool = True,
    deadline: float | None = None,
    us: float = US,
    offloaded: bool = False,
    pace: RunningMean | None = None,
    together: int = 1,
) -> QueuedRequest:
    """A request, by its rows or how many they are."""
    hidden_states = make_hidden(rows) if isinstance(rows, int) else rows
    asked, own = TopKRequest(hidden_states, k), hidden_states if independent else None
    prepared = PreparedRequest(len(hidden_states), k, 0, 0, "best", lambda: asked, own, together)
    future = asyncio.get_running_loop().create_future()
    pace = pace or RunningMean()
    return QueuedRequest(
        point, prepared, us * len(hidden_states), pace, 0, deadline, future, offloaded
    )


def take(queue: Batcher) -> Batch:
    batch = queue.take()
    assert batch is not None
    return batch


def taken(queue: Batcher) -> list[tuple[QueuedRequest, int, int]]:
    """The pieces of the next batch, computed in no time."""
    batch = take(queue)
    pieces = [(queued, queued.start, queued.stop) for queued in batch.requests]
    finish(queue, batch)
    return pieces


def finish(queue: Batcher, batch: Batch, took_us: float = US) -> None:
    answered = [queued for queued in batch.requests if queued.stop == queued.request.rows]
    queue.done(batch, took_us, answered)


async def test_requests_alike_share_a_batch_in_the_order_of_arrival() -> None:
    queue = batcher()
    one, two, other_k = waiting(1), waiting(2), waiting(1, k=4)
    alone, three = waiting(1, independent=False), waiting(3)
    for each in (one, two, other_k, alone, three):
        queue.put(each)
    assert (queue.rows, queue.in_flight) == (8, 5)
    assert taken(queue) == [(one, 0, 1), (two, 0, 2), (three, 0, 3)]
    assert taken(queue) == [(other_k, 0, 1)]
    assert taken(queue) == [(alone, 0, 1)]
    assert (queue.rows, queue.in_flight) == (0, 0)


async def test_rows_of_a_batch_are_bounded_by_what_they_cost() -> None:
    queue = batcher()
    first, full, small = waiting(BATCH_ROWS - 2), waiting(3), waiting(2)
    for each in (first, full, small):
        queue.put(each)
    assert [part[0] for part in taken(queue)] == [first, small]
    assert [part[0] for part in taken(queue)] == [full]
    queue = batcher()
    cheap = waiting(BATCH_ROWS * 2, us=1.0)
    queue.put(cheap)
    assert taken(queue) == [(cheap, 0, BATCH_ROWS * 2)]
    less_cheap = waiting(70, us=30.7)
    queue.put(less_cheap)
    assert taken(queue) == [(less_cheap, 0, 65)]
    # Groups of beams are not parted.
    queue, beams = batcher(), waiting(100, independent=False, together=5)
    queue.put(beams)
    assert [taken(queue) for _ in range(2)] == [[(beams, 0, 60)], [(beams, 60, 100)]]


async def test_a_large_request_goes_to_the_end_after_each_batch_of_it() -> None:
    queue = batcher()
    large, small = waiting(2 * BATCH_ROWS + 5), waiting(1, k=4)
    queue.put(large)
    batch = take(queue)
    queue.put(small)
    finish(queue, batch)
    assert taken(queue) == [(small, 0, 1)]
    assert queue.rows == BATCH_ROWS + 5
    late = waiting(2)  # fills up the last batch of the large one
    queue.put(late)
    waited_ns = large.queue_ns
    assert waited_ns > 0
    assert taken(queue) == [(large, BATCH_ROWS, 2 * BATCH_ROWS)]
    assert large.queue_ns == waited_ns
    assert taken(queue) == [(late, 0, 2), (large, 2 * BATCH_ROWS, 2 * BATCH_ROWS + 5)]
    assert (queue.rows, queue.in_flight) == (0, 0)


async def test_rows_beyond_the_bound_are_refused_but_one_request_always_may_wait() -> None:
    queue = batcher(max_rows=10)
    queue.put(waiting(20))
    with pytest.raises(Overloaded, match="20 rows wait, 10"):
        queue.put(waiting(1))
    taken(queue)
    queue.put(waiting(1))


async def test_a_refused_client_is_told_the_time_that_the_queue_takes() -> None:
    queue, pace = batcher(max_in_flight=2), RunningMean()
    queue.put(waiting(10, pace=pace))
    batch = take(queue)
    finish(queue, batch, took_us=2 * 10 * US)  # twice as slow as estimated
    queue.put(waiting(50, pace=pace))
    queue.put(waiting(50, pace=pace))
    with pytest.raises(Overloaded) as caught:
        queue.put(waiting(1))
    assert caught.value.retry_after_s == pytest.approx(2 * 100 * US * 1e-6)


async def test_one_pause_refuses_no_one_after_it_and_a_slow_engine_is_learnt() -> None:
    queue, pace = batcher(), RunningMean()
    for took_us in (US, 10_000 * US):
        queue.put(waiting(1, pace=pace))
        finish(queue, take(queue), took_us)
    for _ in range(20):
        queue.put(waiting(1, deadline=monotonic() + 1.0, pace=pace))
    while queue.rows:
        finish(queue, take(queue), 20 * US)
    for _ in range(8):
        queue.put(waiting(1, pace=pace))
        finish(queue, take(queue), 1000 * US)
    assert 500 < pace.value < 1000


async def test_who_cannot_be_answered_in_time_is_refused_at_once_or_never_computed() -> None:
    queue, pace = batcher(), RunningMean()
    queue.put(waiting(1, pace=pace))
    taken(queue)  # now the pace is known
    queue.put(waiting(60, pace=pace))
    for left_s in (0.01, 0.1):  # the queue takes 0.06 s
        with pytest.raises(Overloaded, match="left"):
            queue.put(waiting(1, deadline=monotonic() + left_s))
        with pytest.raises(Overloaded, match="left"):
            queue.admit(left_s)
    queue.admit(0.2)
    with pytest.raises(DeadlineExceeded):
        queue.admit(0.0)
    with pytest.raises(DeadlineExceeded):
        queue.put(waiting(1, deadline=monotonic()))
    patient = waiting(1, k=4, deadline=monotonic() + 100)
    queue.put(patient)
    patient.deadline = monotonic()
    taken(queue)
    batch = queue.take()
    assert batch == Batch([], [patient])
    queue.done(batch, None, {patient})
    assert (queue.rows, queue.in_flight) == (0, 0)


@pytest.mark.parametrize("missed", [1.0, 1.3])
async def test_at_twice_the_load_what_is_computed_is_in_time(missed: float) -> None:
    """A second's patience, 5 ms each, and `missed` times that, which nobody measures."""

    now, each_s, patience_s = 0.0, 0.005, 1.0
    queue, pace = batcher(max_in_flight=1000, max_rows=10**6, clock=lambda: now), RunningMean()
    due, in_time, late, refused = 0.0, 0, 0, 0
    while now < 20:
        while due <= now:
            try:
                queue.put(waiting(BATCH_ROWS, deadline=due + patience_s, pace=pace))
            except (Overloaded, DeadlineExceeded):
                refused += 1
            due += each_s * missed / 2
        if not queue.rows:
            now = due
            continue
        batch = take(queue)
        if batch.requests:
            now += each_s * missed
            finish(queue, batch, took_us=each_s * 1e6)
            deadlines = [queued.deadline or 0 for queued in batch.requests]
            in_time += sum(now <= deadline for deadline in deadlines)
            late += sum(now > deadline for deadline in deadlines)
    assert in_time >= 0.98 * 20 / (each_s * missed)
    assert refused > 0.9 * in_time
    assert late == 0


async def test_a_long_request_that_is_late_is_computed_no_further() -> None:
    queue = batcher()
    long = waiting(3 * BATCH_ROWS, independent=False, deadline=monotonic() + 100)
    queue.put(long)
    assert taken(queue) == [(long, 0, BATCH_ROWS)]
    long.deadline = monotonic()
    batch = queue.take()
    assert batch == Batch([], [long])
    queue.done(batch, None, {long})
    assert (queue.rows, queue.in_flight) == (0, 0)


async def test_only_who_meets_others_waits_for_more() -> None:
    queue = batcher(delay_s=0.01)
    first, second = waiting(1), waiting(1)
    queue.put(first)
    assert first.ready_at == 0
    queue.put(second)
    assert second.ready_at > 0
    assert len(taken(queue)) == 2
    queue.put(waiting(1))
    queue.put(other := waiting(1, k=4))
    assert [len(taken(queue)) for _ in range(2)] == [1, 1]
    assert monotonic() >= other.ready_at
    assert queue._pause_s(waiting(BATCH_ROWS)) == 0  # a batch by itself


@pytest.mark.parametrize("head", ["full", "screen", "sketch", "svd"])
@pytest.mark.parametrize("normalizer", ["", "candidates", "sampled", "sketch", "full"])
async def test_answers_are_as_if_alone(whole: LocalDecoder, head: str, normalizer: str) -> None:
    point = whole.engine(head, (), normalizer)
    hidden_states = make_hidden(2 * BATCH_ROWS + 9, seed=3)
    parts = [hidden_states[:1], hidden_states[1:8].astype(np.float16), hidden_states[8:]]

    queue = batcher()
    for part in parts:
        queue.put(waiting(part, 5, point))
    found: dict[int, list[Any]] = {}
    while queue.in_flight:
        batch = take(queue)
        for queued, reply in zip(batch.requests, compute(batch.requests), strict=True):
            found.setdefault(queued.request.rows, []).append(reply)
        finish(queue, batch)
    for part in parts:
        assert_same(joined(found[len(part)]), point.answer(TopKRequest(part, 5)))


async def test_a_bad_request_spoils_no_other(whole: LocalDecoder) -> None:
    point = whole.engine("full", (), "")
    good, bad = make_hidden(2), np.full((3, 24), np.nan, np.float32)

    queue = batcher()
    for part in (good, bad):
        queue.put(waiting(part, 5, point))
    batch = take(queue)
    fine, wrong = compute(batch.requests)
    assert_same(fine, point.answer(TopKRequest(good, 5)))
    assert isinstance(wrong, InvalidRequest)
    assert wrong.field == "hidden_states[0]"  # its own row, not that of the batch


@pytest.mark.parametrize("us", [0.5, US, 1e6])
async def test_a_batch_for_a_gpu_is_as_large_whatever_rows_cost(us: float) -> None:
    queue = batcher()
    long, short = waiting(300, us=us, offloaded=True), waiting(3, us=us, offloaded=True)
    queue.put(long)
    queue.put(short)
    assert taken(queue) == [(long, 0, 256)]
    assert taken(queue) == [(short, 0, 3), (long, 256, 300)]
