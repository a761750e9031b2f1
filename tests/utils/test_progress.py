from __future__ import annotations

import pytest

from logitsieve.utils.options import QUIET_S, StageLines, no_progress, to_progress


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_short_run_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = StageLines("build", clock)
    for clock.now in (0.0, QUIET_S / 2, QUIET_S * 0.99):
        lines("label", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_long_run_prints_each_stage_once(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = StageLines("build", clock)
    lines("label", 1, 20_000)
    clock.now = 12.4
    lines("label", 2, 20_000)
    clock.now = 30.0
    lines("fit", 1, 0)
    lines("label", 3, 20_000)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "build:     0 s  label (20,000)\nbuild:    30 s  fit\n"


def test_options() -> None:
    assert isinstance(to_progress("auto", "build"), StageLines)
    assert to_progress(None, "build") is no_progress
    seen: list[str] = []
    to_progress(lambda stage, done, total: seen.append(stage), "build")("fit", 0, 1)
    assert seen == ["fit"]
