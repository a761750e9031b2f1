from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from logitsieve.cli.app import app
from logitsieve.index import HeadEntry, write_index
from tests.synthetic import make_hidden, make_softmax, screen_arrays

Run = Callable[..., Any]


@pytest.fixture
def run() -> Run:
    """Run a command line; the result has exit_code, stdout and stderr."""

    def invoke(*arguments: object) -> Any:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result

    return invoke


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """An index of 300 words and 24 dimensions, not calibrated."""
    softmax = make_softmax()
    return write_index(
        tmp_path / "models" / "demo" / "1",
        softmax=softmax,
        parts={"screen": screen_arrays(softmax)},
        heads={"exact": HeadEntry(), "screen": HeadEntry("screen", {"probes": 1.0})},
        default_head="screen",
        vocabulary=[f"<b>word{number}" for number in range(300)],
    )


@pytest.fixture
def contexts(tmp_path: Path) -> Path:
    """200 contexts of 24 dimensions."""
    np.save(tmp_path / "H.npy", make_hidden(200))
    return tmp_path / "H.npy"
