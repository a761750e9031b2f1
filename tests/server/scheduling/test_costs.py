from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.server.scheduling.costs import BYTES_PER_US, US_PER_RANDOM, Costs
from tests.server.running import calibration, entries, write_model

DENSE_US = 300 * 24 * 4 / BYTES_PER_US


def costs(folder: Path, **more: Any) -> tuple[Costs, dict[str, float]]:
    """And the knobs of the screen as it is stored."""
    index = open_index(write_model(folder, **more), verify="sizes")
    return Costs(LocalDecoder(index).points, index), dict(index.head("screen").knobs)


def test_calibrated_points_decide(tmp_path: Path) -> None:
    known, stored = costs(
        tmp_path,
        calibration=calibration(
            entries("exact", (9.0, 8.0, 7.0), 1.0),
            entries("screen", (0.5, 0.4, 0.25), 0.9, probes=1),
        ),
    )
    assert known.us_per_row("screen", stored, "", 1, False) == 0.5
    assert known.us_per_row("screen", stored, "", 9, False) == 0.4
    assert known.us_per_row("exact", {}, "", 1, False) == 9.0
    assert known.us_per_row("screen", {**stored, "probes": 3}, "", 1, False) == DENSE_US


def test_a_log_z_costs_what_a_head_does_that_goes_over_as_much(tmp_path: Path) -> None:
    known, stored = costs(
        tmp_path,
        calibration=calibration(
            entries("exact", (9.0, 8.0, 7.0), 1.0),
            entries("screen", (0.5, 0.4, 0.25), 0.9, probes=1),
        ),
    )
    assert known.us_per_row("screen", stored, "candidates", 1, False) == 1.0
    assert known.us_per_row("screen", stored, "exact", 1, False) == 9.5
    assert known.us_per_row("screen", stored, "", 1, True) == 9.5  # by the default normalizer
    assert known.us_per_row("screen", stored, "lowrank", 1, True) == 0.5 + DENSE_US
    assert known.us_per_row("screen", stored, "sampled", 1, True) > 1


def test_without_calibration_all_of_w_is_read(tmp_path: Path) -> None:
    unknown, stored = costs(tmp_path)
    assert unknown.us_per_row("screen", stored, "", 1, False) == DENSE_US
    assert unknown.us_per_row("screen", stored, "", 1, True) == 2 * DENSE_US
    assert unknown.us_beside(300, 0) == pytest.approx(DENSE_US)
    assert unknown.us_beside(0, 2) == 2 * 300 * US_PER_RANDOM
