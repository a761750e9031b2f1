from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from logitsieve.api.errors import InvalidRequest, MissingExtra
from logitsieve.cli.options import executor_at, numbers, read_options, read_words, with_options
from logitsieve.utils import environment
from tests.refusals import refused


@dataclass(frozen=True, kw_only=True)
class Sample:
    models: Path = field(default=Path("models"), metadata={"help": "Of [B, D]."})
    port: int = field(default=1, metadata={"help": "A port.", "low": 0, "high": 9})
    scale: float | None = field(default=None, metadata={"help": "A scale.", "low": 1.0})
    tried: tuple[int, ...] = field(default=(1, 2), metadata={"help": "Some.", "low": 0})
    verify: Literal["full", "sizes"] = field(default="full", metadata={"help": "How."})
    loud: bool = field(default=False, metadata={"help": "Whether."})


@pytest.fixture
def received() -> list[tuple[str, Sample]]:
    return []


@pytest.fixture
def invoke(received: list[tuple[str, Sample]]) -> Callable[..., Any]:
    app = typer.Typer()

    @app.command()
    @partial(with_options, variables="SAMPLE_")
    def command(name: str, config: Sample) -> None:
        received.append((name, config))

    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_parameter_may_have_defaults_of_its_own(received: list[tuple[str, Sample]]) -> None:
    other = Sample(port=7)
    app = typer.Typer()

    @app.command()
    @with_options
    def command(config: Sample = other) -> None:
        received.append(("", config))

    assert CliRunner().invoke(app, ["--scale", "2.5"]).exit_code == 0
    assert received == [("", replace(other, scale=2.5))]


def test_every_field_is_an_option_with_its_default_and_help(
    invoke: Callable[..., Any], received: list[tuple[str, Sample]]
) -> None:
    options = "--models m --port 3 --scale 2.5 --tried 7 --tried 8 --verify sizes"
    assert invoke("x", *options.split()).exit_code == 0
    expected = Sample(models=Path("m"), port=3, scale=2.5, tried=(7, 8), verify="sizes")
    assert received == [("x", expected)]
    assert invoke("x").exit_code == 0
    assert received[1:] == [("x", Sample())]
    shown = invoke("--help").stdout
    for text in ("Of [B, D].", "A port.", "0<=x<=9", "full|sizes", "default: models"):
        assert text in shown


@pytest.mark.parametrize("options", [["--port", "10"], ["--verify", "no"], ["--scale", "0"]])
def test_values_out_of_range(invoke: Callable[..., Any], options: list[str]) -> None:
    result = invoke("x", *options)
    assert result.exit_code == 2
    assert options[0] in result.stderr


def test_a_file_sets_options_and_the_command_line_counts_more(
    invoke: Callable[..., Any], received: list[tuple[str, Sample]], tmp_path: Path
) -> None:
    file = tmp_path / "sample.toml"
    file.write_text('models = "m"\nport = 7\nscale = 2\nverify = "sizes"\nloud = true\n')
    assert invoke("x", "--config", file, "--port", 1, "--no-loud").exit_code == 0
    expected = Sample(models=Path("m"), port=1, scale=2.0, verify="sizes", loud=False)
    assert received == [("x", expected)]
    assert isinstance(received[0][1].scale, float)
    assert invoke("x", "--port", 3).exit_code == 0
    assert received[1][1] == Sample(port=3)


def test_the_environment_wins_over_the_file_and_the_command_line_over_both(
    invoke: Callable[..., Any],
    received: list[tuple[str, Sample]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "sample.toml"
    file.write_text('models = "m"\nport = 7\nscale = 2\n')
    for name, value in (("CONFIG", file), ("PORT", 5), ("SCALE", 3), ("LOUD", "true")):
        monkeypatch.setenv(f"SAMPLE_{name}", str(value))
    assert invoke("x", "--scale", 4).exit_code == 0
    assert received == [("x", Sample(models=Path("m"), port=5, scale=4.0, loud=True))]
    monkeypatch.setenv("SAMPLE_PORT", "10")
    refused = invoke("x")
    assert refused.exit_code == 2
    assert "--port" in refused.stderr


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ("ports = 1", "ports", "models, port, scale"),
        ('port = "1"', "port", "allowed: int"),
        ("port = true", "port", "allowed: int"),
        ("port = 1.0", "port", "allowed: int"),
        ("scale = true", "scale", "allowed: float or int"),
        ("models = 1", "models", "allowed: str"),
        ("verify = 1", "verify", "allowed: str"),
        ("loud = 1", "loud", "allowed: bool"),
        ("tried = 1", "tried", "allowed: list"),
        ('tried = [1, "2"]', "tried", "allowed: int"),
        ("port", "config", "sample.toml"),
        ("[port]\nnumber = 1", "port", "allowed: int"),
    ],
)
def test_a_file_with_something_else(tmp_path: Path, text: str, field: str, said: str) -> None:
    file = tmp_path / "sample.toml"
    file.write_text(text)
    with refused(field, said):
        read_options(file, Sample)


def test_words_of_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("\ufeffthe\nof\n")
    assert read_words(tmp_path / "words.txt") == ["the", "of"]


def test_lists_and_numbers(tmp_path: Path) -> None:
    (tmp_path / "sample.toml").write_text("\ufefftried = [3, 4]")  # as some editors begin a file
    assert read_options(tmp_path / "sample.toml", Sample) == {"tried": (3, 4)}
    with refused("config", "absent"):
        read_options(tmp_path / "absent.toml", Sample)
    assert numbers("knob", []) == {}
    assert numbers("knob", ["probes=2", "p1=0.5, p5=1e-3"]) == {"probes": 2, "p1": 0.5, "p5": 1e-3}
    for text in ("probes", "probes=", "probes=two", "", "=3"):
        with pytest.raises(InvalidRequest, match=r"^knob: got "):
            numbers("knob", [text])


def test_no_address_no_executor_and_an_absent_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    with executor_at(None) as executor:
        assert executor is None
    monkeypatch.setattr(environment, "find_spec", lambda name: None)
    with pytest.raises(
        MissingExtra, match=r"ray is not installed: pip install -c constraints.txt -e '\.\[ray\]'"
    ):
        executor_at("auto")
