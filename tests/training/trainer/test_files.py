from __future__ import annotations

from pathlib import Path
from typing import IO

import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer.files import (
    COLUMNS,
    TRAINED,
    Log,
    load_checkpoint,
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


def test_a_log_goes_on_after_its_step(tmp_path: Path) -> None:
    file = tmp_path / TRAINED
    log = Log(file, 0)
    for step in (1, 2, 3):
        log.write([step, 0.5])
    with file.open("a") as stream:
        stream.write("4,1,7")  # killed here
    log = Log(file, 2)
    header = ",".join(COLUMNS[TRAINED])
    assert file.read_text().splitlines() == [header, "1,0.5", "2,0.5"]
    log.write([3, 0.25])
    assert file.read_text().splitlines() == [header, "1,0.5", "2,0.5", "3,0.25"]
