"""A capture gives the same contexts however often it is killed, and none of other batches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from logitsieve.api.errors import InvalidRequest
from logitsieve.index_builder.capture import CaptureConfig, capture
from logitsieve.index_builder.capture import checkpoint as module

ROOT = Path(__file__).parents[3]
BATCHES, ROWS, DIM = 9, 7, 4
CONFIG = CaptureConfig(max_rows=10, dtype="float32", seed=3)  # thinned twice


class Net(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.output, self.calls = nn.Linear(3, DIM), nn.Linear(DIM, 11), 0

    def forward(self, inputs: Tensor) -> Any:
        self.calls += 1
        return self.output(torch.tanh(self.body(inputs)))


def batches(count: int = BATCHES, changed: int | None = None) -> Iterator[Tensor]:
    for number in range(count):
        torch.manual_seed(1000 if number == changed else number)
        yield torch.randn(ROWS, 3)


def stop_after(rows: int, how: Callable[[], None]) -> Any:
    """A progress that ends the capture where it has seen so many rows."""

    def progress(stage: str, seen: int, total: int) -> None:
        if seen >= rows:
            how()

    return progress


def interrupt() -> None:
    raise KeyboardInterrupt


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def contents(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(out.iterdir())}


@pytest.fixture(autouse=True)
def noted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A capture that nothing interrupts."""
    out = tmp_path_factory.mktemp("whole") / "out"
    capture(Net(), batches(), out, config=CONFIG)
    return contents(out)


@pytest.mark.parametrize("seen", range(1, BATCHES + 1))
def test_an_interrupted_capture_runs_only_what_is_missing(
    seen: int, whole: dict[str, bytes], tmp_path: Path
) -> None:
    progress = stop_after(seen * ROWS, interrupt)
    with pytest.raises(KeyboardInterrupt):
        capture(Net(), batches(), tmp_path / "out", config=CONFIG, progress=progress)
    net = Net()
    capture(net, batches(), tmp_path / "out", config=CONFIG)
    assert contents(tmp_path / "out") == whole
    looked_at = 2  # the first batch, to find the layer and to compare its logits
    assert net.calls == looked_at + BATCHES - seen
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_killed_capture_goes_on(whole: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tests.index_builder.capture.test_checkpoint", str(out)]
    for _ in range(2):  # also if it is killed again
        died = subprocess.run(command, cwd=ROOT, timeout=120, check=False, capture_output=True)
        assert died.returncode == -signal.SIGKILL, died.stderr
    net = Net()
    capture(net, batches(), out, config=CONFIG)
    assert contents(out) == whole
    assert net.calls < BATCHES


@pytest.mark.parametrize("other", [list(batches(changed=2)), list(batches(count=3))])
def test_a_capture_of_other_batches_starts_over(
    other: list[Tensor], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    progress = stop_after(5 * ROWS, interrupt)
    with pytest.raises(KeyboardInterrupt):
        capture(Net(), batches(), tmp_path / "out", config=CONFIG, progress=progress)
    capture(Net(), other, tmp_path / "out", config=CONFIG)
    assert "read other batches: starting over" in caplog.text
    capture(Net(), other, tmp_path / "again", config=CONFIG)
    assert contents(tmp_path / "out") == contents(tmp_path / "again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "out"]


def test_other_batches_that_cannot_be_read_twice_are_refused_once(tmp_path: Path) -> None:
    progress = stop_after(5 * ROWS, interrupt)
    with pytest.raises(KeyboardInterrupt):
        capture(Net(), batches(), tmp_path / "out", config=CONFIG, progress=progress)
    with pytest.raises(InvalidRequest, match=r"batches: got others than .* call again to start"):
        capture(Net(), batches(changed=2), tmp_path / "out", config=CONFIG)
    assert not list(tmp_path.iterdir())
    capture(Net(), batches(changed=2), tmp_path / "out", config=CONFIG)


@pytest.mark.parametrize(
    ("error", "stays"),
    [(None, False), (ValueError, False), (KeyboardInterrupt, True), (BrokenExecutor, True)],
)
def test_the_state_stays_if_another_try_may_end_otherwise(
    tmp_path: Path, error: type[BaseException] | None, stays: bool
) -> None:
    raised = None
    try:
        with module.capture_checkpoint(tmp_path / "out", DIM, CONFIG):
            if error:
                raise error
    except BaseException as caught:
        raised = type(caught)
    assert raised is error
    assert bool(list(tmp_path.iterdir())) is stays


def test_another_model_takes_nothing_of_it(whole: dict[str, bytes], tmp_path: Path) -> None:
    progress = stop_after(5 * ROWS, interrupt)
    other = Net()
    torch.nn.init.ones_(other.body.bias)  # the output layer is the same
    with pytest.raises(KeyboardInterrupt):
        capture(other, batches(), tmp_path / "out", config=CONFIG, progress=progress)
    capture(Net(), batches(), tmp_path / "out", config=CONFIG)
    assert contents(tmp_path / "out") == whole


def test_one_capture_of_the_same_at_a_time(whole: dict[str, bytes], tmp_path: Path) -> None:
    def another() -> None:
        with pytest.raises(InvalidRequest, match=r"out: got .*another process captures the same"):
            capture(Net(), batches(), tmp_path / "other", config=CONFIG)

    progress = stop_after(0, another)
    capture(Net(), batches(), tmp_path / "out", config=CONFIG, progress=progress)
    assert contents(tmp_path / "out") == whole


def test_batches_are_told_apart_by_all_that_they_hold() -> None:
    row = torch.arange(4, dtype=torch.int64)
    different = [
        row,
        row.int(),
        row.reshape(2, 2),
        row.numpy(),
        row.bfloat16(),
        torch.tensor(2),
        torch.tensor(3),
        [row],
        (row, row),
        {"ids": row},
        {"other": row},
        {"ids": row, "use_cache": False},
        {"ids": row, "use_cache": True},
        np.float32(1.5),
        "text",
        [0, 1, 2, 3],
    ]
    assert len({module._digest("", each) for each in different}) == len(different)
    assert module._digest("", row) == module._digest("", row.clone())
    assert module._digest("", row[::2]) == module._digest("", torch.tensor([0, 2]))


if __name__ == "__main__":
    module.EVERY_S = 0.0
    capture(Net(), batches(), sys.argv[1], config=CONFIG, progress=stop_after(5 * ROWS, kill))
