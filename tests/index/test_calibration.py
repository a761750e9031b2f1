import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import IndexUnreadable
from logitsieve.index import open_index
from logitsieve.index.calibration import pack_contexts, unpack_contexts


def point(head: str = "exact") -> dict[str, Any]:
    return {
        "head": {"name": head, "knobs": {"probes": 1.0}},
        "rows": 1,
        "us_per_row": 2.5,
        "precision": {"1": {"mean": 1.0, "low": 0.9}},
        "uneven": False,
        "candidates": 7.0,
        "mass_kept": 1.0,
    }


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
    hidden = np.arange(12, dtype=np.float32).reshape(4, 3)
    unpacked = unpack_contexts(whole(), 3)
    assert unpacked is not None
    np.testing.assert_array_equal(unpacked, hidden)
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
    "calibration.machine.cpu: missing": lambda c: c.update(machine={}),
    "calibration.machine.date: got 3": lambda c: c["machine"].update(date=3),
    "calibration.heldout_rows: got 'many'": lambda c: c.update(heldout_rows="many"),
    "calibration.heldout_rows: got True": lambda c: c.update(heldout_rows=True),
    "calibration.points: got 3": lambda c: c.update(points=3),
    "calibration.points[0]: got 3": lambda c: c.update(points=[3]),
    "points: the head 'exact' at 1 row": lambda c: c["points"].pop(0),
    "points[0].head.knobs.probes: got 'x'": lambda c: c["points"][0]["head"].update(
        knobs={"probes": "x"}
    ),
    "points[1].head.name: got 'aaa": lambda c: c["points"][1]["head"].update(name="a" * 1000),
    "points[1].head.name: got 'bbb": lambda c: c["points"][1]["head"].update(name="b" * 201),
    "points[1].rows: got 10": lambda c: c["points"][1].update(rows=10**15),
    "points[1].us_per_row: got 10": lambda c: c["points"][1].update(us_per_row=1e15),
    "points[1].candidates: got -10": lambda c: c["points"][1].update(candidates=-1e15),
    "points[1].precision.1.low: got -0.1": lambda c: c["points"][1]["precision"]["1"].update(
        low=-0.1
    ),
    "points[0].rows: got 0": lambda c: c["points"][0].update(rows=0),
    "points[1].us_per_row: got nan": lambda c: c["points"][1].update(us_per_row=math.nan),
    "points[1].us_per_row: got 0": lambda c: c["points"][1].update(us_per_row=0),
    "points[1].candidates: got 10000": lambda c: c["points"][1].update(candidates=10**400),
    "points[1].mass_kept: got inf": lambda c: c["points"][1].update(mass_kept=math.inf),
    "points[1].uneven: got 'no'": lambda c: c["points"][1].update(uneven="no"),
    "points[1].precision.1.mean: got '1'": lambda c: c["points"][1]["precision"]["1"].update(
        mean="1"
    ),
    "points[1].precision: got []": lambda c: c["points"][1].update(precision=[]),
    "points[1].precision: got 'p1'": lambda c: c["points"][1].update(precision={"p1": 1}),
    "points[1].precision.1.low: got 1.5": lambda c: c["points"][1]["precision"]["1"].update(
        low=1.5
    ),
    "points[1].precision.1.low: got nan": lambda c: c["points"][1]["precision"]["1"].update(
        low=math.nan
    ),
    "calibration.contexts: got 3": lambda c: c.update(contexts=3),
    "calibration.contexts.rows: missing": lambda c: c.update(contexts={}),
    "calibration.contexts.float32: needed: rows": lambda c: c.update(
        contexts={"rows": 1, "dim": 1, "float32": "####"}
    ),
    "calibration.contexts.float32: needed: rows x dim": lambda c: c["contexts"].update(
        float32="#" + c["contexts"]["float32"]
    ),
    "contexts.float32: needed: rows x": lambda c: c["contexts"].update(rows=10**14),
    "contexts.float32: needed: finite": lambda c: c.update(
        contexts=pack_contexts(np.full((1, 3), np.nan, np.float32))
    ),
}


@pytest.mark.parametrize("reason", SPOILED)
def test_any_other_shape_is_refused_by_its_place(tiny: Path, reason: str) -> None:
    calibration = whole()
    SPOILED[reason](calibration)
    with pytest.raises(IndexUnreadable) as refused:
        measured(tiny, calibration)
    assert refused.value.file == tiny / "calibration.json"
    assert reason in refused.value.reason
    assert len(refused.value.reason) <= 300
