import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.index import open_index
from logitsieve.index.calibration import pack_contexts, unpack_contexts
from tests.index.samples import put
from tests.refusals import unreadable


def point(head: str = "full") -> dict[str, Any]:
    judged = {"precision": {"1": {"mean": 1.0, "low": 0.9}}, "uneven": False}
    measured = {"rows": 1, "us_per_row": 2.5, "candidates": 7.0, "mass_kept": 1.0, "max_error": 0.0}
    return {"head": {"name": head, "knobs": {"probes": 1.0}}, **judged, **measured}


def whole() -> dict[str, Any]:
    return {
        "machine": {"cpu": "any"},
        "heldout_rows": 100,
        "points": [point(), point("screen")],
        "contexts": pack_contexts(np.arange(12, dtype=np.float32).reshape(4, 3)),
        "fit": {"left": "alone"},
    }


def measured(index: Path, calibration: object) -> Any:
    (index / "calibration.json").write_text(json.dumps(calibration))
    with open_index(index, verify="sizes") as opened:
        return opened.measured


def test_calibration_is_given_as_it_is_or_not_at_all(tiny: Path) -> None:
    with open_index(tiny, verify="sizes") as opened:
        assert opened.measured is None
    assert measured(tiny, whole()) == whole()
    extreme = whole()
    extreme["points"][1].update(us_per_row=9e14, rows=9 * 10**14, candidates=-9e14, mass_kept=0)
    extreme["points"][1]["head"]["name"] = "a" * 200
    extreme["points"][1]["precision"]["1"]["low"] = 0
    assert measured(tiny, extreme) == extreme


def test_contexts_are_what_they_were() -> None:
    hidden_states = np.arange(12, dtype=np.float32).reshape(4, 3)
    unpacked = unpack_contexts(whole(), 3)
    assert unpacked is not None
    np.testing.assert_array_equal(unpacked, hidden_states)
    assert unpacked.flags.writeable
    with pytest.raises(ValueError, match="dim: got 3, needed: 4"):
        unpack_contexts(whole(), 4)
    assert unpack_contexts({}, 3) is None


@pytest.mark.parametrize(("rows", "dim", "kept"), [(300, 2, 256), (9, 1 << 18, 4), (2, 1 << 21, 1)])
def test_so_many_contexts_are_kept_as_the_file_has_room_for(rows: int, dim: int, kept: int) -> None:
    packed = pack_contexts(np.zeros((rows, dim), np.float32))
    assert packed["rows"] == kept
    assert len(packed["float32"]) < 12 << 20


SPOILED: dict[str, Callable[[dict[str, Any]], object]] = {
    "calibration.machine: missing": lambda c: c.pop("machine"),
    "calibration.machine.cpu: missing": put("machine", to={}),
    "calibration.machine.date: got 3": put("machine", "date", to=3),
    "calibration.heldout_rows: got 'many'": put("heldout_rows", to="many"),
    "calibration.heldout_rows: got True": put("heldout_rows", to=True),
    "calibration.points: got 3": put("points", to=3),
    "calibration.points[0]: got 3": put("points", to=[3]),
    "points: the head 'full' at 1 row": lambda c: c["points"].pop(0),
    "points[0].head.knobs.probes: got 'x'": put("points", 0, "head", "knobs", "probes", to="x"),
    "points[1].head.name: got 'aaa": put("points", 1, "head", "name", to="a" * 1000),
    "points[1].head.name: got 'bbb": put("points", 1, "head", "name", to="b" * 201),
    "points[1].rows: got 10": put("points", 1, "rows", to=10**15),
    "points[1].us_per_row: got 10": put("points", 1, "us_per_row", to=1e15),
    "points[1].candidates: got -10": put("points", 1, "candidates", to=-1e15),
    "points[0].rows: got 0": put("points", 0, "rows", to=0),
    "points[1].draw_us: got 0": put("points", 1, "draw_us", to=0),
    "points[1].us_per_row: got nan": put("points", 1, "us_per_row", to=math.nan),
    "points[1].us_per_row: got 0": put("points", 1, "us_per_row", to=0),
    "points[1].candidates: got 10000": put("points", 1, "candidates", to=10**400),
    "points[1].mass_kept: got inf": put("points", 1, "mass_kept", to=math.inf),
    "points[1].max_error: got 2": put("points", 1, "max_error", to=2),
    "points[1].uneven: got 'no'": put("points", 1, "uneven", to="no"),
    "points[1].precision: got []": put("points", 1, "precision", to=[]),
    "points[1].precision: got 'p1'": put("points", 1, "precision", to={"p1": 1}),
    "points[1].precision.1.mean: got '1'": put("points", 1, "precision", "1", "mean", to="1"),
    **{
        f"points[1].precision.1.low: got {low}": put("points", 1, "precision", "1", "low", to=low)
        for low in (-0.1, 1.5, math.nan)
    },
    "calibration.contexts: got 3": put("contexts", to=3),
    "calibration.contexts.rows: missing": put("contexts", to={}),
    "calibration.contexts.float32: needed: rows": put("contexts", "float32", to="####"),
    "calibration.contexts.float32: needed: rows x dim": put("contexts", "float32", to="#" * 65),
    "contexts.float32: needed: rows x": put("contexts", "rows", to=10**14),
    "contexts.float32: needed: finite": put(
        "contexts", to=pack_contexts(np.full((1, 3), np.nan, np.float32))
    ),
}


@pytest.mark.parametrize("reason", SPOILED)
def test_any_other_shape_is_refused_by_its_place(tiny: Path, reason: str) -> None:
    calibration = whole()
    SPOILED[reason](calibration)
    with unreadable(tiny / "calibration.json", reason, most=300):
        measured(tiny, calibration)
