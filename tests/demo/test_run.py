import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import fields
from io import StringIO
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from demo.contexts import three_texts, windows
from demo.decode import HEADS
from demo.excerpt import EXCERPT, read_paragraphs
from demo.run import Demo, next_version
from demo.serving import NotServing, serving
from demo.show import difference, wait_for_enter
from logitsieve.cli.app import app
from logitsieve.client import DecoderClient
from logitsieve.index import open_index
from logitsieve.training.vocabulary import Vocabulary
from tests.demo.tiny import WORDS, tiny_options
from tests.server.running import write_model

ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")


def test_the_next_version(tmp_path: Path) -> None:
    assert next_version(tmp_path / "nowhere") == 1
    for name in ("notes", "0", "007", ".tmp-build-12"):
        (tmp_path / name).mkdir()
    (tmp_path / "heldout.npy").touch()
    assert next_version(tmp_path) == 1
    for name in ("2", "10"):
        (tmp_path / name).mkdir()
    assert next_version(tmp_path) == 11


def test_the_three_texts_share_nothing() -> None:
    paragraphs = read_paragraphs(EXCERPT)
    texts = three_texts(paragraphs)
    assert sorted(chain(*texts)) == sorted(paragraphs)
    assert len(texts.judge) == pytest.approx(len(texts.choose), rel=0.1)


def test_windows_are_spread_over_the_text() -> None:
    vocabulary = Vocabulary(WORDS)
    paragraphs = [" ".join([f"w{number % 38}"] * 69) for number in range(100)]
    every = windows(vocabulary, paragraphs, 10**6)
    assert every.shape == (100, 70)
    some = windows(vocabulary, paragraphs, 710)
    assert some.shape == (10, 70)
    np.testing.assert_array_equal(some[[0, -1]], every[[0, -1]])


@pytest.mark.parametrize(
    ("full", "screen", "marked"),
    [
        ("the same words", "the same world of words", "world of words"),
        ("one", "another", "another"),
        ("one more", "one", ""),
    ],
)
def test_what_differs_is_marked(full: str, screen: str, marked: str) -> None:
    text = difference(full, screen)
    assert text.plain == screen
    assert " ".join(text.plain[span.start : span.end] for span in text.spans) == marked
    assert difference(full, full).plain == "same"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stdin", "waits"), [(Terminal("\n"), True), (StringIO("\n"), False)])
def test_it_waits_for_enter_on_a_terminal_alone(stdin: StringIO, waits: bool) -> None:
    output = StringIO()
    wait_for_enter(Console(file=output, force_terminal=True), "http://127.0.0.1:1/", stdin)
    assert ("http://127.0.0.1:1/" in output.getvalue()) == waits
    assert stdin.read() == ("" if waits else "\n")


@pytest.mark.system
def test_a_server_ends_with_its_block(tmp_path: Path) -> None:
    write_model(tmp_path)
    addresses = []

    def fail_while_serving() -> None:
        with serving(tmp_path, "demo@1") as at, DecoderClient(at.grpc) as client:
            addresses.append(at.grpc)
            assert at.console.startswith("http://127.0.0.1:")
            assert client.model("demo@1").state == "available"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_while_serving()
    assert not listens(int(addresses[0].partition(":")[2]))


@pytest.mark.system
@pytest.mark.parametrize(
    ("models", "model", "within_s", "reason"),
    [
        ("", "demo@2", 240.0, "demo@2"),
        ("", "demo@1", 0.01, r"within 0\.01 s"),
        pytest.param(
            "none", "demo@1", 240.0, "model_repository: got", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_a_server_that_does_not_serve(
    tmp_path: Path, models: str, model: str, within_s: float, reason: str
) -> None:
    write_model(tmp_path)
    with pytest.raises(NotServing, match=reason), serving(tmp_path / models, model, within_s):
        pass


@pytest.mark.system
def test_the_whole_demo(tmp_path: Path) -> None:
    """After another one, which left a version and contexts."""
    options = tiny_options(tmp_path)
    write_model(options.models)
    for name in ("contexts.npy", "heldout.npy", "prompts.npy"):
        (options.folder / name).touch()
    output = StringIO()
    Demo(options, Console(file=output, width=100)).run()
    said = output.getvalue()
    assert all(word in said for word in ("capture", "build", "serve", "P@1", "P@5", "Done in"))
    assert "demo@2 is ready" in said
    assert "Enter ends the demo" not in said  # no terminal
    assert max(map(len, said.partition("Done in")[0].splitlines())) <= 100
    assert not listens(int(ADDRESS.search(said)[1]))  # type: ignore[index]
    index = open_index(options.folder / "2")
    assert set(index.heads) == set(HEADS)
    assert index.vocabulary == WORDS
    left = {path.name for path in options.folder.iterdir()}
    assert left == {"1", "2", "contexts.npy", "heldout.npy", "prompts.npy"}
    assert np.load(options.folder / "prompts.npy").shape == (2, 12)
    [line] = re.findall(r"^\S+ (inspect .*)$", said, re.MULTILINE)
    assert CliRunner().invoke(app, line.split()).exit_code == 0


@pytest.mark.system
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive), signal.SIGTERM]
)
def test_stopping_it_stops_the_server(tmp_path: Path, number: signal.Signals) -> None:
    options = tiny_options(tmp_path, words=10**9)
    flags = [f"--{field.name}={getattr(options, field.name)}" for field in fields(options)]
    demo = subprocess.Popen(
        [sys.executable, "-m", "tests.brief", "demo.run", *flags],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert demo.stdout is not None
    ready, port = next((line, int(at[1])) for line in demo.stdout if (at := ADDRESS.search(line)))
    assert "demo@1 is ready" in ready
    assert listens(port)
    demo.send_signal(number)
    demo.communicate(timeout=60)
    assert demo.returncode != 0
    assert not listens(port)


def listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0
