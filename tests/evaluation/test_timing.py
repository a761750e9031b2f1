import itertools

import numpy as np
import pytest

from logitsieve.api.results import ArrayLike, TopK
from logitsieve.evaluation import timing, us_per_row
from logitsieve.evaluation.timing import BATCHES, TIMED_K, cpu_name
from tests.synthetic import make_head, make_hidden, make_softmax


class Recorder:
    """A head that remembers what it was asked."""

    def __init__(self) -> None:
        self.firsts: list[float] = []
        self.shapes: list[tuple[int, ...]] = []
        self.warmed = 0

    def warm(self) -> None:
        self.warmed += 1

    def topk(self, hidden_states: ArrayLike, k: int) -> TopK:
        self.firsts.append(float(np.asarray(hidden_states)[0, 0]))
        self.shapes.append(np.shape(hidden_states))
        return make_head("full", make_softmax(vocab_size=20)).topk(hidden_states, k)


@pytest.mark.parametrize(("rows", "batch"), [(23, 8), (5, 8), (9, 1)])
def test_every_timed_call_has_the_same_rows(rows: int, batch: int) -> None:
    head = Recorder()
    assert us_per_row(head, make_hidden(rows), 2, batch, calls=6, limit_ns=10**12) > 0
    assert (head.warmed, head.shapes) == (1, [(batch, 24)] * 7)
    assert (TIMED_K, BATCHES) == (
        5,
        (1, 2, 4, 8, 16, 64),
    )  # as docs/building.md says of calibration.json


def test_fewer_calls_than_batches_are_spread_over_the_rows_and_repeated_in_turn() -> None:
    head, hidden_states = Recorder(), make_hidden(10)
    us_per_row(head, hidden_states, 2, 1, calls=9, limit_ns=10**12)
    assert head.firsts == hidden_states[[0] + [0, 4, 8] * 3, 0].tolist()


def test_dear_rows_count_and_moments_of_load_do_not() -> None:
    # Batches take 1, 9 and 2 us; the first call of each meets 100 us of load.
    took = iter([101, 109, 102, 1, 9, 2, 1, 9, 2])
    clock = iter(np.cumsum([1000 * t for us in took for t in (0, us)]).tolist())
    hidden_states, one = make_hidden(6), clock.__next__
    assert us_per_row(Recorder(), hidden_states, 2, 2, calls=9, limit_ns=10**12, clock=one) == 2.0


def test_no_call_is_begun_when_the_time_is_over() -> None:
    head = Recorder()
    us_per_row(head, make_hidden(20), 2, 1, limit_ns=0)
    assert len(head.shapes) == 1 + 2
    us_per_row(head, make_hidden(20), 2, 1, calls=1)
    assert len(head.shapes) == 1 + 2 + 1 + 1
    clock = itertools.count(step=50_000_000)
    head = Recorder()
    us_per_row(head, make_hidden(20), 2, 1, limit_ns=timing.LIMIT_NS, clock=clock.__next__)
    assert len(head.shapes) == 1 + 5  # a quarter of a second is enough


def test_the_processor_has_a_name() -> None:
    assert len(cpu_name()) > 1
    assert cpu_name() == cpu_name().strip()
