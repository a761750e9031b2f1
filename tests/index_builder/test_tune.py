import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import IndexUnreadable
from logitsieve.heads import HEADS
from logitsieve.index import Index, link_index, open_index
from logitsieve.index.calibration import check_calibration, unpack_contexts
from logitsieve.index_builder import TuneConfig, tune
from tests.index.samples import snapshot
from tests.refusals import refused
from tests.synthetic import make_hidden, make_softmax, write_heads

HIDDEN = make_hidden(300)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """V = 300, D = 24, six clusters."""
    words, config = [f"word{i}" for i in range(300)], {"target_precision": {"p1": 0.9}}
    out = tmp_path / "models" / "lm" / "1"
    return write_heads(out, make_softmax(), "screen", vocabulary=words, config=config)


def tuned(index: Path, **options: Any) -> tuple[Index, dict[str, Any]]:
    found = tune(index, HIDDEN, index.parent / "2", TuneConfig(**options))
    assert found.measured is not None
    return found, dict(found.measured)


def settings(calibration: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    heads = [point["head"] for point in calibration["points"] if point["rows"] == 1]
    return [(head["name"], head["knobs"]) for head in heads]


def test_knobs_are_swept_and_what_is_stored_stays(index: Path) -> None:
    _, calibration = tuned(index)
    measured = settings(calibration)
    assert measured[:2] == [("full", {}), ("screen", dict(open_index(index).head("screen").knobs))]
    # All six lists are united at the most: more probes are the same setting.
    probes = {1.0} | {min(6.0, tried) for tried in HEADS["screen"].knob_table["probes"].tried}
    assert {knobs["probes"] for name, knobs in measured if name == "screen"} <= probes
    assert calibration["settings"]["left_out"] == 0
    assert calibration["settings"]["measured"] >= max(3, len(measured))
    assert calibration["heldout_rows"] == 300
    check_calibration(calibration)
    contexts = unpack_contexts(calibration, 24)
    assert contexts is not None
    assert len(contexts) == 256
    assert (contexts[:, None] == HIDDEN).all(axis=2).any(axis=1).all()


def test_the_new_version_answers_as_the_old_one_and_shares_its_files(index: Path) -> None:
    before = snapshot(index)
    found, _ = tuned(index, minutes=0)
    old = open_index(index)
    assert (found.digest, found.version) == (old.digest, 2)
    assert (index.parent / "2" / "manifest.json").read_bytes() == before["manifest.json"]
    for name in ("softmax.safetensors", "screen.safetensors", "vocabulary.txt"):
        assert (index / name).stat().st_ino == (found.path / name).stat().st_ino
    assert snapshot(index) == before
    np.testing.assert_equal(found.head().topk(HIDDEN, 5), old.head().topk(HIDDEN, 5))


def test_without_time_only_stored_settings_are_measured(index: Path) -> None:
    stages, config = list[tuple[str, int, int]](), TuneConfig(minutes=0, rows=100)
    found = tune(index, HIDDEN, index.parent / "2", config, lambda *step: stages.append(step))
    calibration = json.loads((found.path / "calibration.json").read_bytes())
    assert (len(settings(calibration)), calibration["heldout_rows"]) == (2, 100)
    measured, left_out = (calibration["settings"][name] for name in ("measured", "left_out"))
    assert measured == 2
    assert left_out > 0
    assert ("judge", 100, 100) in stages
    assert stages[-1] == ("tune", 2, 2 + left_out)


@pytest.mark.parametrize(
    ("contexts", "out", "field"),
    [
        (HIDDEN, "1", "out"),
        (HIDDEN, "one", "out"),
        (HIDDEN[:, :5], "2", "contexts"),
        (HIDDEN[:0], "2", "contexts"),
        (np.full((3, 24), np.nan, np.float32), "2", "contexts"),
        ("missing.npy", "2", "contexts"),
    ],
)
def test_bad_arguments_write_nothing(index: Path, contexts: Any, out: str, field: str) -> None:
    with refused(field):
        tune(index, contexts, index.parent / out)
    assert list(index.parent.iterdir()) == [index]


def test_a_damaged_index_is_not_tuned(index: Path) -> None:
    data = bytearray((index / "softmax.safetensors").read_bytes())
    data[-1] ^= 1
    (index / "softmax.safetensors").write_bytes(data)
    with pytest.raises(IndexUnreadable, match=r"softmax\.safetensors"):
        tune(index, HIDDEN, index.parent / "2")
    assert list(index.parent.iterdir()) == [index]


def test_the_points_of_an_index_are_measured_again_whatever_the_time(index: Path) -> None:
    _, calibration = tuned(index, minutes=0)
    screens = [point for point in calibration["points"] if point["head"]["name"] == "screen"]
    wider = {"name": "screen", "knobs": {**screens[0]["head"]["knobs"], "probes": 3.0}}
    calibration["points"] += [point | {"head": wider} for point in screens]
    link_index(index, index.parent / "3", calibration=calibration)
    again = tune(index.parent / "3", HIDDEN, index.parent / "4", TuneConfig(minutes=0))
    assert again.measured is not None
    assert again.measured["settings"]["measured"] == 3
