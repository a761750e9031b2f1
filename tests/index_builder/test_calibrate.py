import numpy as np
import pytest

from logitsieve.heads import Head
from logitsieve.index.calibration import check_calibration, unpack_contexts
from logitsieve.index_builder import calibrate as module
from logitsieve.index_builder.calibrate import Bench, calibrate
from logitsieve.index_builder.data.contexts import Contexts
from tests.index_builder.clustered import make_contexts
from tests.synthetic import make_head, make_softmax

SOFTMAX = make_softmax(vocab_size=90, dim=16)
HELDOUT = Contexts([make_contexts(120)])


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> dict[str, Head]:
    """`exact` and a screen; timing them takes no time."""
    monkeypatch.setattr(module, "us_per_row", lambda head, hidden, k, batch: 8.0 / batch)
    return {name: make_head(name, SOFTMAX) for name in ("exact", "screen")}


def test_every_head_is_measured_at_each_batch_size(heads: dict[str, Head]) -> None:
    seen: list[tuple[str, int, int]] = []
    found = calibrate(heads, HELDOUT, 90, lambda *step: seen.append(step))
    check_calibration(found)
    assert seen[0] == ("judge", 120, 120)
    assert seen[1:] == [("calibrate", 1, 2), ("calibrate", 2, 2)]
    assert found["heldout_rows"] == 120
    assert [(point["head"]["name"], point["rows"]) for point in found["points"]] == [
        (name, rows) for name in ("exact", "screen") for rows in (1, 8, 64)
    ]
    assert [point["us_per_row"] for point in found["points"]] == [8.0, 1.0, 0.125] * 2
    contexts = unpack_contexts(found, 16)
    np.testing.assert_array_equal(contexts, HELDOUT.sample(120))


def test_precision_is_the_share_of_the_exact_ids(heads: dict[str, Head]) -> None:
    bench = Bench(heads["exact"], HELDOUT, 90)
    screen = heads["screen"]
    (point,) = bench.entries("screen", screen, {1: 2.0})
    hidden = HELDOUT.sample(120)
    right = screen.topk(hidden, 1).ids == heads["exact"].topk(hidden, 1).ids
    assert point["precision"]["1"]["mean"] == pytest.approx(right.mean())
    assert point["precision"]["1"]["low"] <= point["precision"]["1"]["mean"]
    assert (point["rows"], point["us_per_row"], point["proven"]) == (1, 2.0, False)
