from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from logitsieve.index.calibration import pack_contexts
from logitsieve.server.models.repository import Repository
from logitsieve.server.models.routes import Version
from logitsieve.server.precision.recalibrator import Recalibrator
from logitsieve.utils.options import no_progress
from tests.server.running import MEASURED, WAIT_S, Loop, config_for, running, write_model
from tests.synthetic import make_hidden

CONTEXTS = pack_contexts(make_hidden(4))
ELSEWHERE = {"cpu": "another processor"}


def loaded(folder: Path, cache: Path, **changes: Any) -> tuple[list[Version], bytes]:
    """The one version, calibrated as given, and its calibration.json."""
    path = write_model(folder, calibration={**MEASURED, **changes})
    repository = Repository(config_for(folder, kernel_cache=cache))
    repository.load("demo", 1, no_progress)
    return repository.versions(), (path / "calibration.json").read_bytes()


def times(version: Version) -> list[float]:
    assert version.served is not None
    return [point.us_per_row for point in version.served.points]


def test_an_index_of_another_machine_is_measured_recalibrator(
    tmp_path: Path, kernel_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    versions, before = loaded(tmp_path, kernel_cache, machine=ELSEWHERE, contexts=CONTEXTS)
    old, again = times(versions[0]), Recalibrator(share=1.0)
    again.start(versions)
    again.join(WAIT_S)
    assert set(times(versions[0])).isdisjoint(old)
    assert "calibrated on another processor, measuring 3 points again" in caplog.text
    assert "demo@1: 3 points measured on" in caplog.text
    assert (tmp_path / "demo" / "1" / "calibration.json").read_bytes() == before


def test_an_index_of_this_machine_is_left_alone(
    tmp_path: Path, kernel_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    versions, _ = loaded(tmp_path, kernel_cache, contexts=CONTEXTS)
    caplog.clear()  # of what loading said
    again, old = Recalibrator(share=1.0), times(versions[0])
    again.start([*versions, Version("broken", 1, error="why")])
    again.join(WAIT_S)
    assert times(versions[0]) == old
    assert caplog.text == ""


def test_without_contexts_the_old_times_stay(
    tmp_path: Path, kernel_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    versions, _ = loaded(tmp_path, kernel_cache, machine=ELSEWHERE)
    again, old = Recalibrator(share=1.0), times(versions[0])
    again.start(versions)
    again.join(WAIT_S)
    assert times(versions[0]) == old
    assert "without contexts" in caplog.text


def test_a_stop_ends_it(tmp_path: Path, kernel_cache: Path) -> None:
    versions, _ = loaded(tmp_path, kernel_cache, machine=ELSEWHERE, contexts=CONTEXTS)
    again, old = (
        Recalibrator(share=1e-9),
        times(versions[0]),
    )  # the rest after the first lasts for years
    again.start(versions)
    again.stop()
    assert times(versions[0]) == old
    assert again._thread is not None
    assert not again._thread.is_alive()


def test_what_goes_wrong_is_logged_and_changes_nothing(
    tmp_path: Path, kernel_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = pack_contexts(make_hidden(4, dim=5))
    versions, _ = loaded(tmp_path, kernel_cache, machine=ELSEWHERE, contexts=wrong)
    again, old = Recalibrator(share=1.0), times(versions[0])
    with caplog.at_level(logging.ERROR):
        again.start(versions)
        again.join(WAIT_S)
    assert times(versions[0]) == old
    assert "contexts.dim: got 5, needed: 24" in caplog.text


def test_a_server_measures_once_it_serves_and_its_clients_see_it(
    tmp_path: Path, kernel_cache: Path, loop: Loop
) -> None:
    write_model(tmp_path, calibration={**MEASURED, "machine": ELSEWHERE, "contexts": CONTEXTS})
    with running(loop, config_for(tmp_path, kernel_cache=kernel_cache)) as run:
        run.server._recalibrator.join(WAIT_S)
        points = run.client.model("demo").points
        assert [(point.head, point.rows) for point in points[::3]] == [
            ("exact", 1),
            ("screen", 1),
            ("screen", 1),
        ]
        before = {entry["us_per_row"] for entry in MEASURED["points"]}
        assert before.isdisjoint(point.us_per_row for point in points)
        assert points[3].precision_at[5] == 0.9
        assert run.client.topk(make_hidden(1), 3, exact=True).answer.exact.all()
