from __future__ import annotations

from pathlib import Path
from typing import IO

import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer.files import load_checkpoint, replace, save_checkpoint


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
