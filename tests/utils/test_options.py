from __future__ import annotations  # ranges go by the text of a field's type

from dataclasses import dataclass, fields
from typing import Any

import pytest

from logitsieve.utils.options import (
    QUIET_S,
    StageLines,
    check_ranges,
    no_progress,
    option,
    to_progress,
)
from tests.refusals import refused


@dataclass(frozen=True, kw_only=True)
class Options:
    rows: int = option(4, "rows a call", 1, 64)
    share: float = option(0.5, "of the rows", 0.0, 1.0)
    seed: int | None = option(None, "of the noise", 0, 9)

    def __post_init__(self) -> None:
        check_ranges(self)


def test_values_in_their_ranges_are_taken() -> None:
    made = Options(rows=64, share=1, seed=9)
    assert (made.rows, made.share, made.seed) == (64, 1, 9)
    assert Options().seed is None
    assert fields(Options)[0].metadata["help"] == "rows a call"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *[("rows", value, "a whole number, 1 to 64") for value in (0, 65, 1.0, True, None)],
        *[("share", value, "a number, 0 to 1") for value in (-0.1, 2, "1", False)],
        *[("seed", value, "a whole number, 0 to 9") for value in (-1, 0.5)],
    ],
)
def test_others_are_refused_by_name(name: str, value: Any, allowed: str) -> None:
    with refused(name, allowed):
        Options(**{name: value})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_long_run_alone_says_its_progress(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = StageLines("build", clock)
    for clock.now in (0.0, QUIET_S / 2, QUIET_S * 0.99):
        lines("label", 1, 2)
    assert capsys.readouterr() == ("", "")
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
    assert isinstance(to_progress("auto", "build"), StageLines)
    assert to_progress(None, "build") is no_progress
    seen: list[str] = []
    to_progress(lambda stage, done, total: seen.append(stage), "build")("fit", 0, 1)
    assert seen == ["fit"]
    clock = Clock()
    lines = StageLines("build", clock)
    for clock.now, done in ((4.0, 100), (13.9, 300), (14.0, 350), (20.0, 500), (24.5, 600)):
        lines("label", done, 1000)
    for clock.now, done in ((25.0, 5), (35.0, 6000)):
        lines("capture", done, 0)
    assert capsys.readouterr().err.splitlines() == [
        "build:     4 s  label (1,000)",
        "build:    14 s  label 35%, 26 s left",
        "build:    24 s  label 60%, 16 s left",
        "build:    25 s  capture",
        "build:    35 s  capture 6,000",
    ]
