from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import IO

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer.files import (
    COLUMNS,
    TRAINED,
    VALIDATED,
    Logs,
    load_checkpoint,
    read_log,
    replace,
    save_checkpoint,
)


def fail_halfway(stream: IO[bytes]) -> None:
    stream.write(b"half")
    raise ZeroDivisionError


def test_a_file_is_replaced_whole_or_not(tmp_path: Path) -> None:
    file = tmp_path / "file"
    replace(file, lambda stream: stream.write(b"old"))
    with pytest.raises(ZeroDivisionError):
        replace(file, fail_halfway)
    assert file.read_bytes() == b"old"
    replace(file, lambda stream: stream.write(b"new"))
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


def test_checkpoints(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, {"steps": 3, "numbers": torch.arange(3), "none": None})
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert (found["steps"], found["none"], found["numbers"].tolist()) == (3, None, [0, 1, 2])
    content = (tmp_path / "checkpoint.pt").read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"nothing of the kind"):
        (tmp_path / "checkpoint.pt").write_bytes(damaged)
        with pytest.raises(InvalidRequest, match="a checkpoint that is whole"):
            load_checkpoint(tmp_path)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    torch.save({"steps": Path("anything")}, tmp_path / "checkpoint.pt")
    with pytest.raises(InvalidRequest):
        load_checkpoint(tmp_path)


def row(name: str, step: int) -> dict[str, float]:
    return {column: float(place) for place, column in enumerate(COLUMNS[name])} | {"step": step}


def steps_drawn(folder: Path, curve: str) -> list[int]:
    curves = EventAccumulator(str(folder / "tensorboard"))
    curves.Reload()
    return [event.step for event in curves.Scalars(curve)]


def test_a_run_that_goes_on_writes_the_rest_of_the_log(tmp_path: Path) -> None:
    with closing(Logs(tmp_path, 0, 0)) as logs:
        for step in (1, 2, 3):
            logs.write(TRAINED, row(TRAINED, step))
            logs.write(VALIDATED, row(VALIDATED, step))
    with (tmp_path / TRAINED).open("a") as file:
        file.write("4,1,7")  # killed here
    with closing(Logs(tmp_path, 2, 1)) as logs:
        assert [each["step"] for each in read_log(tmp_path / TRAINED)] == [1, 2]
        assert [each["step"] for each in read_log(tmp_path / VALIDATED)] == [1]
        logs.write(TRAINED, row(TRAINED, 3))
        logs.write(VALIDATED, row(VALIDATED, 2))
    assert [each["step"] for each in read_log(tmp_path / TRAINED)] == [1, 2, 3]
    assert steps_drawn(tmp_path, "train/loss") == [1, 2, 3]
    assert steps_drawn(tmp_path, "valid/loss") == [1, 2]


def test_curves_that_were_never_written_are_drawn_when_the_run_goes_on(tmp_path: Path) -> None:
    with closing(Logs(tmp_path, 0, 0)) as logs:
        logs.write(TRAINED, row(TRAINED, 1))
    for file in (tmp_path / "tensorboard").iterdir():
        file.write_bytes(b"")  # as a process leaves it that is killed soon
    with closing(Logs(tmp_path, 1, 0)) as logs:
        logs.write(TRAINED, row(TRAINED, 2))
    assert steps_drawn(tmp_path, "train/loss") == [1, 2]
