from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from logitsieve.training.trainer.logs import COLUMNS, TRAINED, VALIDATED, Logs, read_log


def row(name: str, step: int) -> dict[str, float]:
    return {column: float(place) for place, column in enumerate(COLUMNS[name])} | {"step": step}


def test_a_run_that_goes_on_writes_the_rest_of_the_log(tmp_path: Path) -> None:
    with Logs(tmp_path, 0, 0) as logs:
        for step in (1, 2, 3):
            logs.write(TRAINED, row(TRAINED, step))
            logs.write(VALIDATED, row(VALIDATED, step))
    with (tmp_path / TRAINED).open("a") as file:
        file.write("4,1,7")  # killed here
    with Logs(tmp_path, 2, 1) as logs:
        assert [each["step"] for each in read_log(tmp_path / TRAINED)] == [1, 2]
        assert [each["step"] for each in read_log(tmp_path / VALIDATED)] == [1]
        logs.write(TRAINED, row(TRAINED, 3))
    assert [each["step"] for each in read_log(tmp_path / TRAINED)] == [1, 2, 3]
    curves = EventAccumulator(str(tmp_path / "tensorboard"))
    curves.Reload()
    events = curves.Scalars("train/loss")
    assert [event.step for event in events] == [1, 2, 3]
