"""Times and rows of heads, at each number of rows a call."""

from time import sleep
from typing import Any

import numpy as np

from logitsieve.api.results import ArrayLike, TopK
from logitsieve.evaluation.timing import BATCHES
from logitsieve.heads._base.kernel_head import BestWithLogZ
from logitsieve.heads.full import FullHead
from logitsieve.heads.sketch import SketchHead
from logitsieve.index_builder.calibrate import calibrate
from logitsieve.index_builder.contexts import Contexts
from logitsieve.index_builder.fitting import Trial
from logitsieve.utils.options import no_progress
from tests.synthetic import decaying, rotated, sketch_arrays


def test_each_head_is_measured_itself_at_each_batch_size() -> None:
    softmax, hidden_states = decaying(2000, 128)
    arrays = sketch_arrays(softmax, rotated(softmax, hidden_states), 32)
    full = FullHead(softmax)
    head = SketchHead(softmax, arrays, fallback=full, knobs={"max_error": 0.0})
    heads = [full, head, head.with_knobs(max_error=1e-15)]
    heldout = Contexts([np.tile(hidden_states, (3, 1))])
    points = calibrate(heads, heldout, 2000, no_progress)["points"]
    assert [point["rows"] for point in points] == 3 * [*BATCHES]
    assert [point["max_error"] for point in points[:: len(BATCHES)]] == [0.0, 0.0, 1e-15]
    for point in points:
        every = point["head"]["name"] == "full"
        assert point["candidates"] == 2000 if every else point["candidates"] < 200
    times = [point[each] for point in points for each in ("us_per_row", "draw_us")]
    assert len({*times}) == len(times)  # none is taken from another


class Interrupted(FullHead):
    """Waits as long in each call as a busy machine keeps its thread from running."""

    def topk(self, hidden_states: ArrayLike, k: int) -> TopK:
        sleep(0.02)
        return super().topk(hidden_states, k)

    def best_with_log_z(self, *asked: Any, **options: Any) -> BestWithLogZ:
        sleep(0.02)
        return super().best_with_log_z(*asked, **options)


def test_times_are_those_of_a_machine_without_other_work() -> None:
    softmax, hidden_states = decaying(500, 32)
    heldout = Contexts([np.tile(hidden_states, (2, 1))])
    points = calibrate([Interrupted(softmax)], heldout, 500, no_progress)["points"]
    for point in points:
        for us in (point["us_per_row"], point["draw_us"], point["steps"]["us_per_row"]):
            assert us * point["rows"] < 10_000
    trial = Trial(hidden_states, 1)
    assert trial.us(Interrupted(softmax)) < 10_000
