from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logitsieve.index import open_index
from logitsieve.server.costs import BYTES_PER_US, Costs, read_points
from logitsieve.types.errors import IndexUnreadable
from tests.server.running import write_model

DENSE_US = 300 * 24 * 4 / BYTES_PER_US
CALIBRATION = {
    "points": [
        {
            "head": {"name": "screen", "knobs": {"probes": 1.0}},
            "rows": rows,
            "us_per_row": us,
            "precision_at": {"1": 0.998, "5": 0.99},
            "mass_kept": 0.97,
            "machine": "told, but not to clients",
        }
        for rows, us in ((1, 0.5), (64, 0.25))
    ]
}


def costs(folder: Path, calibration: dict[str, Any] | None) -> Costs:
    index = open_index(write_model(folder, calibration=calibration), verify="sizes")
    return Costs(read_points(index), index)


def test_calibrated_points_decide(tmp_path: Path) -> None:
    known = costs(tmp_path, CALIBRATION)
    assert known.estimate_us(1, "", {}, "") == 0.5
    assert known.estimate_us(8, "screen", {}, "") == 4.0
    assert known.estimate_us(2, "exact", {}, "") == 2 * DENSE_US
    assert known.estimate_us(1, "screen", {"probes": 64}, "") == DENSE_US
    assert known.estimate_us(1, "screen", {}, "candidates") == 1.0
    assert known.estimate_us(1, "screen", {}, "exact") == 2 * DENSE_US


def test_without_calibration_all_of_w_is_read(tmp_path: Path) -> None:
    assert costs(tmp_path, None).estimate_us(3, "", {}, "") == 3 * DENSE_US


def test_points_as_clients_see_them(tmp_path: Path) -> None:
    index = open_index(write_model(tmp_path, calibration=CALIBRATION), verify="sizes")
    first, second = read_points(index)
    assert (first.rows, second.rows) == (1, 64)
    assert dict(first.precision_at) == {1: 0.998, 5: 0.99}
    assert dict(first.head.knobs) == {"probes": 1.0}


@pytest.mark.parametrize("points", [3, [3], [{"rows": "many"}], [{"head": 1}]])
def test_spoiled_points(tmp_path: Path, points: Any) -> None:
    index = open_index(write_model(tmp_path, calibration={"points": points}), verify="sizes")
    with pytest.raises(IndexUnreadable, match="points"):
        read_points(index)
