from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from logitsieve.training.trainer.files import COLUMNS, TRAINED, VALIDATED, Logs, read_log


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
