"""Times and rows of heads, at each number of rows a call."""

import numpy as np

from logitsieve.evaluation import evaluate
from logitsieve.heads.exact import ExactHead
from logitsieve.heads.sketch import SketchHead
from logitsieve.index_builder.calibrate import calibrate
from logitsieve.index_builder.contexts import Contexts
from logitsieve.utils.options import no_progress
from tests.synthetic import decaying, rotated, sketch_arrays


def test_a_proof_is_judged_as_it_answers_at_each_batch_size() -> None:
    """Proofs of more than three rows a call take the code of `exact`, its time and all rows."""
    softmax, hidden = decaying(2000, 128)
    arrays = sketch_arrays(softmax, rotated(softmax, hidden), 32)
    exact = ExactHead(softmax)
    head = SketchHead(softmax, arrays, fallback=exact, knobs={"max_error": 0.0})
    heads = [exact, head, head.with_knobs(max_error=1e-15)]
    heldout = Contexts([np.tile(hidden, (3, 1))])
    points = calibrate(heads, heldout, 2000, no_progress)["points"]
    assert [point["rows"] for point in points] == 3 * [1, 8, 64]
    assert [point["max_error"] for point in points[::3]] == [0.0, 0.0, 1e-15]
    assert all(point["candidates"] < 200 for point in points[6:])
    assert [point["candidates"] for point in points[:3]] == [2000] * 3
    alone, *others = points[3:6]
    assert alone["candidates"] < 200
    assert alone["us_per_row"] != points[0]["us_per_row"]
    for point, other in zip(others, points[1:3], strict=True):
        assert (point["candidates"], point["us_per_row"]) == (2000, other["us_per_row"])
    blocks = [np.tile(hidden, (8, 1))]  # 40 are judged
    for batch, all_rows in ((1, False), (3, False), (4, True), (40, True)):
        found = evaluate(head, exact, blocks, (1, 5), batch)
        assert found.scanned[5] == 2000 if all_rows else found.scanned[5] < 200
