"""Settings of a run, and the folder that it may be begun in."""

from __future__ import annotations

from pathlib import Path

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer import Settings, TrainConfig, begin, train
from tests.training.trainer.ring import settings


def test_settings_come_back(tmp_path: Path) -> None:
    made = settings(tmp_path, loss_option=("n_sampled=3", "per_row=true"))
    begin(tmp_path / "run", made)
    assert Settings.load(tmp_path / "run") == made
    with_valid = Settings(text=made.text, valid=made.text, config=TrainConfig())
    begin(tmp_path / "run", with_valid)
    assert Settings.load(tmp_path / "run") == with_valid


def test_what_cannot_be_begun(tmp_path: Path) -> None:
    made, whole = settings(tmp_path), tmp_path / "whole"
    begin(whole, made)
    (whole / "checkpoint.pt").touch()
    with pytest.raises(InvalidRequest, match=r"out: got .* holds a run"):
        begin(whole, made)
    for name in ("text", "valid"):
        files = {"text": made.text, "valid": None, name: tmp_path / "nowhere"}
        with pytest.raises(InvalidRequest, match=f"{name}: got"):
            begin(tmp_path / "new", Settings(config=made.config, **files))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="loss_option"):
        begin(tmp_path / "new", settings(tmp_path, loss_option=("k=3",)))
    with pytest.raises(InvalidRequest, match="device: got meta, allowed: cpu or cuda"):
        begin(tmp_path / "new", settings(tmp_path, device="meta"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["log.csv", "settings.json"])
def test_what_is_of_no_run_is_left_alone(tmp_path: Path, name: str) -> None:
    other = tmp_path / "folder" / name
    other.parent.mkdir()
    other.write_text("{}")
    with pytest.raises(InvalidRequest, match="out: got"):
        begin(tmp_path / "folder", settings(tmp_path))
    assert other.read_text() == "{}"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"text": "a", "valid": null, "dim": 0}'])
def test_a_folder_without_a_run(tmp_path: Path, content: str) -> None:
    with pytest.raises(InvalidRequest, match="resume: got"):
        train(tmp_path)
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(InvalidRequest, match="allowed"):
        train(tmp_path)
