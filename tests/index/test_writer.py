import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import IndexUnreadable, InvalidRequest
from logitsieve.heads._base.head import Softmax
from logitsieve.index import HeadEntry, link_index
from logitsieve.index.files import STALE_AFTER_S
from logitsieve.index.reader import read_contents
from logitsieve.index.verify import verify_contents
from tests.index.samples import (
    WORDS,
    arguments,
    snapshot,
    tiny_screen,
    tiny_softmax,
    write_sketch,
    write_tiny,
)
from tests.refusals import refused
from tests.synthetic import make_softmax, usual_sketch, write_heads

GOLDEN = Path(__file__).parent / "golden" / "1"
STEPS = ["folder", "part screen", "part softmax", "vocabulary", "calibration", "manifest", "named"]


def temporaries(folder: Path) -> list[Path]:
    return list(folder.glob(".tmp-*"))


def test_golden_bytes(tiny: Path, tmp_path: Path) -> None:
    assert snapshot(tiny) == snapshot(GOLDEN)
    verify_contents(read_contents(GOLDEN))
    golden = GOLDEN.parent / "2"
    assert snapshot(write_sketch(tmp_path / "demo" / "2")) == snapshot(golden)
    verify_contents(read_contents(golden), all_rows=True)


def test_equal_arguments_give_equal_files_whatever_is_measured(tmp_path: Path, tiny: Path) -> None:
    screen = tiny_screen()
    screen["offsets"] = screen["offsets"].astype(">i4")
    screen["centroids"] = np.asfortranarray(screen["centroids"])
    other = write_tiny(
        tmp_path / "other" / "2",
        parts={"screen": dict(reversed(screen.items()))},
        heads=dict(reversed(arguments()["heads"].items())),
        vocabulary=tuple(WORDS),
    )
    assert snapshot(other) == snapshot(tiny)
    measured = {"cpu": "any", "us": [1.5, 2]}
    other = write_tiny(tmp_path / "demo" / "2", calibration=measured)
    assert read_contents(other).calibration == measured
    assert read_contents(tiny).calibration is None
    assert read_contents(other).manifest.digest == read_contents(tiny).manifest.digest


def test_steps_come_in_order_and_leave_nothing_beside(tmp_path: Path, tiny: Path) -> None:
    steps: list[str] = []
    out = tmp_path / "deep" / "models" / "demo" / "1"
    assert write_tiny(out, calibration={}, checkpoint=steps.append) == out
    assert steps == STEPS
    assert list(out.parent.iterdir()) == [out]
    beside = tiny.parent / "folder"
    beside.mkdir()
    assert tiny.stat().st_mode == beside.stat().st_mode


@pytest.mark.parametrize(
    "out", ["demo/0", "demo/01", "demo/one", "demo/-1", "Demo/1", ".demo/1", "a b/1"]
)
def test_out_must_be_a_name_and_a_version(tmp_path: Path, out: str) -> None:
    with refused("out"):
        write_tiny(tmp_path / out)
    assert not list(tmp_path.iterdir())


def test_an_out_that_is_there_is_an_error_and_stays(tiny: Path) -> None:
    before, folder, link = snapshot(tiny), tiny.parent / "2", tiny.parent / "3"
    folder.mkdir()
    link.symlink_to("nowhere")
    for out in (tiny, folder, link):
        with refused("out", "exists"):
            write_tiny(out, softmax=tiny_softmax(1))
    assert snapshot(tiny) == before


def test_of_two_writers_the_first_to_finish_wins(tmp_path: Path) -> None:
    out = tmp_path / "demo" / "1"

    def overtake(step: str) -> None:
        if step == "manifest":
            write_tiny(out)

    with pytest.raises(InvalidRequest, match="exists by now"):
        write_tiny(out, softmax=tiny_softmax(1), checkpoint=overtake)
    assert snapshot(out) == snapshot(GOLDEN)
    assert not temporaries(out.parent)


def interrupt(last: str, step: str) -> None:
    if step == last:
        raise KeyboardInterrupt


@pytest.mark.parametrize("last", STEPS[:-1])
def test_a_failure_leaves_nothing(tmp_path: Path, last: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_tiny(tmp_path / "demo" / "1", checkpoint=partial(interrupt, last))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", ["folder", "part screen", "part softmax"])
def test_arrays_that_change_while_they_are_written_leave_nothing(tmp_path: Path, step: str) -> None:
    softmax, screen = tiny_softmax(), tiny_screen()

    def change(done: str) -> None:
        if done == step:
            softmax.weight[3, 1] += 1
            softmax.bias[3] += 1

    out = tmp_path / "models" / "demo" / "1"
    wanted = {"softmax": softmax, "parts": {"screen": screen}, "checkpoint": change}
    if step == "part softmax":  # its file is written: what happens now is no concern of it
        write_tiny(out, **wanted)
        assert snapshot(out) == snapshot(GOLDEN)
        return
    with refused("weight", "changed while the index was built"):
        write_tiny(out, **wanted)
    assert not list(tmp_path.iterdir())
    write_tiny(out)
    assert snapshot(out) == snapshot(GOLDEN)


def test_a_sketch_of_another_matrix_is_not_written(tmp_path: Path) -> None:
    parts = {"sketch": usual_sketch(make_softmax(seed=1))}
    with refused("parts['sketch']", "not the sketch of this matrix: row 0"):
        write_heads(tmp_path / "demo" / "1", make_softmax(seed=2), "sketch", parts=parts)
    assert not list(tmp_path.iterdir())


@pytest.mark.system
def test_a_kill_at_any_step_leaves_all_or_nothing(tmp_path: Path) -> None:
    folders = {step: tmp_path / str(place) for place, step in enumerate(STEPS)}
    before = {step: snapshot(write_tiny(folder / "1")) for step, folder in folders.items()}
    program = [sys.executable, "-m", "tests.index.killed_writer", str(tmp_path), *STEPS]
    subprocess.run(program, cwd=Path(__file__).parents[2], check=True)
    for step, folder in folders.items():
        out = folder / "2"
        assert out.exists() == (step == "named")
        if not out.exists():
            assert len(temporaries(folder)) == 1
            write_tiny(out, calibration={"us": 1.0})
        verify_contents(read_contents(out))
        assert snapshot(out).keys() == {*before[step], "calibration.json"}
        assert snapshot(folder / "1") == before[step]


def test_only_what_is_older_than_a_day_is_swept(tiny: Path) -> None:
    stale, young = tiny.parent / ".tmp-stale", tiny.parent / ".tmp-young"
    for folder in (stale, young):
        folder.mkdir()
        (folder / "softmax.safetensors").write_bytes(b"half")
    long_ago = time.time() - STALE_AFTER_S - 60
    os.utime(stale, (long_ago, long_ago))
    os.utime(tiny, (long_ago, long_ago))
    write_tiny(tiny.parent / "2")
    assert not stale.exists()
    assert young.exists()
    assert tiny.exists()


LINKED_STEPS = [
    *("folder", "file screen.safetensors", "file softmax.safetensors", "file vocabulary.txt"),
    *("calibration", "manifest", "named"),
]


def test_a_linked_index_differs_in_its_measurements_alone(tiny: Path) -> None:
    before, steps = snapshot(tiny), list[str]()
    out = link_index(tiny, tiny.parent / "2", calibration={"us": 1.0}, checkpoint=steps.append)
    assert steps == LINKED_STEPS
    assert snapshot(out) == {**before, "calibration.json": b'{"us":1.0}\n'}
    for name in ("screen.safetensors", "softmax.safetensors", "vocabulary.txt"):
        assert (out / name).stat().st_ino == (tiny / name).stat().st_ino
    assert snapshot(tiny) == before
    assert not temporaries(tiny.parent)
    verify_contents(read_contents(out))


@pytest.mark.parametrize("last", LINKED_STEPS[:-1])
def test_a_failure_while_linking_leaves_nothing(tiny: Path, last: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        link_index(tiny, tiny.parent / "2", calibration={}, checkpoint=partial(interrupt, last))
    assert list(tiny.parent.iterdir()) == [tiny]
    verify_contents(read_contents(tiny))


def test_a_copy_is_checked(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError("another file system")

    monkeypatch.setattr(os, "link", refuse)
    copy = link_index(tiny, tiny.parent / "2", calibration={})
    assert snapshot(copy) == {**snapshot(tiny), "calibration.json": b"{}\n"}
    data = bytearray((tiny / "screen.safetensors").read_bytes())
    data[-1] ^= 1
    (tiny / "screen.safetensors").write_bytes(data)
    with pytest.raises(IndexUnreadable, match="sha256"):
        link_index(tiny, tiny.parent / "3", calibration={})
    assert not (tiny.parent / "3").exists()


def test_what_cannot_be_linked(tiny: Path) -> None:
    with pytest.raises(InvalidRequest, match="exists"):
        link_index(tiny, tiny, calibration={})
    with pytest.raises(InvalidRequest, match="calibration"):
        link_index(tiny, tiny.parent / "2", calibration={"us": float("nan")})
    (tiny / "manifest.json").write_bytes(b"{}")
    with pytest.raises(IndexUnreadable, match=r"manifest\.json"):
        link_index(tiny, tiny.parent / "2", calibration={})
    assert list(tiny.parent.iterdir()) == [tiny]


def spoiled(name: str, place: tuple[int, ...], value: float) -> dict[str, np.ndarray]:
    screen = tiny_screen()
    screen[name][place] = value
    return screen


def refusals() -> Iterator[tuple[str, dict[str, Any]]]:
    W, b = tiny_softmax().weight, tiny_softmax().bias
    full = {"full": HeadEntry()}
    yield "softmax", {"softmax": Softmax(W, np.full_like(b, np.inf))}
    yield "parts", {"parts": {"softmax": {"weight": W}}}
    yield "parts['screen']", {"parts": {"screen": {}}}
    yield "parts['screen']", {"parts": {"screen": spoiled("ids", (0,), 7)}}
    yield "parts['screen']", {"parts": {"screen": spoiled("centroids", (0, 0), np.nan)}}
    yield "parts['other']", {"parts": {"other": {"mask": np.ones(3, bool)}}}
    yield "parts['other']", {"parts": {"other": {"words": np.array(["a"], object)}}}
    yield "parts['other']", {"parts": {"other": {"scalar": np.float32(1)}}}
    yield "parts['other']", {"parts": {"other": {"_pad_0": np.ones(3)}}}
    yield "heads", {"heads": {"screen": HeadEntry("screen")}}
    yield "heads", {"heads": {**full, "svd": HeadEntry("svd")}, "default_head": "full"}
    yield "heads", {"heads": full, "default_head": "svd"}
    yield "heads", {"heads": {**full, "screen": HeadEntry("screen", {"probes": 0})}}
    yield "heads", {"heads": {**full, "screen": HeadEntry("softmax")}}
    yield "heads", {"heads": {**full, "screen": HeadEntry()}}
    yield "heads", {"parts": {"../x": {"a": np.ones(1)}}, "heads": full, "default_head": "full"}
    wrong: dict[str, Any] = {"config": {"a": object()}, "knobs": {"a": np.inf}}
    for field, value in wrong.items():
        one = {"full": HeadEntry(**{field: value})}
        yield f"heads['full'].{field}", {"heads": one, "default_head": "full"}
    yield "config", {"config": {"rate": float("nan")}}
    yield "config", {"config": {"array": np.ones(1)}}
    yield "calibration", {"calibration": {"us": float("inf")}}
    yield "heads", {"seeds": {"fit": 1.5}}
    yield "vocabulary", {"vocabulary": WORDS[1:]}
    yield "vocabulary", {"vocabulary": [*WORDS[1:], "two\nlines"]}
    yield "vocabulary", {"vocabulary": [*WORDS[1:], "\ud800"]}
    yield "vocabulary", {"vocabulary": [1] * len(WORDS)}
    yield "vocabulary", {"vocabulary": [*WORDS[1:], b"bytes"]}


@pytest.mark.parametrize(("field", "changes"), list(refusals()))
def test_bad_arguments_write_nothing(tmp_path: Path, field: str, changes: dict[str, Any]) -> None:
    with refused(field):
        write_tiny(tmp_path / "demo" / "1", **changes)
    assert not (tmp_path / "demo").exists()


def test_integer_keys_and_tuples_in_config_read_back_as_json_has_them(tmp_path: Path) -> None:
    config = {"rounds": {10: (1, 2), 9: None}}
    contents = read_contents(write_tiny(tmp_path / "demo" / "1", config=config))
    assert contents.manifest.config == {"rounds": {"10": [1, 2], "9": None}}


def test_the_matrix_is_not_copied(tmp_path: Path) -> None:
    weight = np.ones((1 << 13, 512), np.float32)  # 16 MiB
    softmax = Softmax(weight, np.zeros(1 << 13, np.float32))
    tracemalloc.start()
    write_heads(tmp_path / "demo" / "1", softmax)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < weight.nbytes / 4
