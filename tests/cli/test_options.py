from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from logitsieve.cli.options import numbers, with_options
from logitsieve.types.errors import InvalidRequest


@dataclass(frozen=True, kw_only=True)
class Sample:
    models: Path = field(default=Path("models"), metadata={"help": "Of [B, D]."})
    port: int = field(default=1, metadata={"help": "A port.", "low": 0, "high": 9})
    scale: float | None = field(default=None, metadata={"help": "A scale.", "low": 1.0})
    tried: tuple[int, ...] = field(default=(1, 2), metadata={"help": "Some.", "low": 0})
    verify: Literal["full", "sizes"] = field(default="full", metadata={"help": "How."})


@pytest.fixture
def received() -> list[tuple[str, Sample]]:
    return []


@pytest.fixture
def invoke(received: list[tuple[str, Sample]]) -> Callable[..., Any]:
    app = typer.Typer()

    @app.command()
    @with_options(Sample)
    def command(name: str, config: Sample) -> None:
        received.append((name, config))

    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_defaults_are_the_dataclass_own(
    invoke: Callable[..., Any], received: list[tuple[str, Sample]]
) -> None:
    assert invoke("x").exit_code == 0
    assert received == [("x", Sample())]


def test_every_field_is_an_option(
    invoke: Callable[..., Any], received: list[tuple[str, Sample]]
) -> None:
    options = "--models m --port 3 --scale 2.5 --tried 7 --tried 8 --verify sizes"
    assert invoke("x", *options.split()).exit_code == 0
    expected = Sample(models=Path("m"), port=3, scale=2.5, tried=(7, 8), verify="sizes")
    assert received == [("x", expected)]


def test_the_help_is_the_fields(invoke: Callable[..., Any]) -> None:
    shown = invoke("--help").stdout
    for text in ("Of [B, D].", "A port.", "0<=x<=9", "full|sizes", "default: models"):
        assert text in shown


@pytest.mark.parametrize("options", [["--port", "10"], ["--verify", "no"], ["--scale", "0"]])
def test_values_out_of_range_are_usage_errors(
    invoke: Callable[..., Any], options: list[str]
) -> None:
    result = invoke("x", *options)
    assert result.exit_code == 2
    assert options[0] in result.stderr


def test_numbers() -> None:
    assert numbers("knob", []) == {}
    assert numbers("knob", ["probes=2", "p1=0.5, p5=1e-3"]) == {"probes": 2, "p1": 0.5, "p5": 1e-3}


@pytest.mark.parametrize("text", ["probes", "probes=", "probes=two", "", "=3"])
def test_numbers_names_the_field(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^knob: got "):
        numbers("knob", [text])
