from dataclasses import replace
from functools import partial

import pytest

from logitsieve.cli.output import bars, print_json, print_table, shown, size, train_display
from logitsieve.training.trainer import TrainingStatus
from logitsieve.utils.options import StageLines


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((None, "-"), (0.99876, "0.9988"), (2e-7, "2e-07"), (123456.7, "123,457")),
        *((10000, "10,000"), (True, "True"), ("word", "word"), ("naïve", "naïve")),
        ("a\x1b[2Jb", r"'a\x1b[2Jb'"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert shown(value) == text


def test_sizes() -> None:
    sizes = {12: "12 B", 2048: "2.0 KiB", 3 << 20: "3.0 MiB", 5 << 30: "5.00 GiB"}
    assert {count: size(count) for count in sizes} == sizes


def test_tables_show_everything_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("title", ["word", "n"], [["[red]x", 1], ["y" * 200, 2]])
    printed = capsys.readouterr().out
    assert "[red]x" in printed
    assert printed.count("y") == 200
    assert "…" not in printed
    print_table("first\nsecond \x1b[2J", ["word"], [])
    assert capsys.readouterr().out.startswith("first\n'second \\x1b[2J'\n")
    print_table("title", ["word"], [])
    assert "word" in capsys.readouterr().out


def test_output_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1]})
    captured = capsys.readouterr()
    assert captured.out == '{\n  "a": [\n    1\n  ]\n}\n'
    assert captured.err == ""
    with bars() as progress:
        progress("capture", 5, 0)
        progress("capture", 10, 0)
        progress("verify", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_resumed_training_says_where_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    status = TrainingStatus(rows=10, per_epoch=190, total=1900, steps=41)
    with train_display(resumed=True) as display:
        display.step(status)
        display.step(replace(status, steps=42))
    assert capsys.readouterr().err == "Going on at step 41 of 1,900.\n"
    with train_display(resumed=False) as display:
        display.step(status)
    assert capsys.readouterr().err == ""


def test_training_without_a_terminal_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 1.0, 9.0, 20.0])
    lines = partial(StageLines, clock=times.__next__)
    monkeypatch.setattr("logitsieve.cli.output.StageLines", lines)
    status = TrainingStatus(rows=10, per_epoch=190, total=1900, steps=41)
    with train_display(resumed=False) as display:
        for steps in (41, 100, 190):
            display.step(replace(status, steps=steps))
    begun, later = capsys.readouterr().err.splitlines()
    assert begun == "train:     1 s  train (1,900)"
    assert later.startswith("train:    20 s  train 10%, ")
