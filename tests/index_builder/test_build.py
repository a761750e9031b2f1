import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.evaluation import evaluate
from logitsieve.evaluation.timing import BATCHES
from logitsieve.heads.sketch import GRADES
from logitsieve.index import Index, open_index
from logitsieve.index.reader import read_contents
from logitsieve.index_builder import BuildConfig, build
from logitsieve.utils.floats import narrowed, widened
from tests.index_builder.clustered import make_contexts
from tests.refusals import refused
from tests.synthetic import make_softmax

CONFIG = BuildConfig(
    clusters=8, budget=20.0, rounds=1, steps=10, batch_rows=64, clusters_tried=(6, 12)
)
V, D = 120, 16
SOFTMAX = make_softmax(vocab_size=V, dim=D)


pytestmark = pytest.mark.usefixtures("always_a_sketch")


def arguments(**changes: Any) -> dict[str, Any]:
    given = {"weight": SOFTMAX.weight, "bias": SOFTMAX.bias, "contexts": make_contexts(1500)}
    return {**given, "config": CONFIG, **changes}


def measured(index: Index) -> dict[str, Any]:
    return dict(index.calibration or {})


def test_a_built_index_opens_and_answers(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(V)]
    stages = []
    index = build(
        **arguments(out=tmp_path / "models" / "lm" / "1", vocabulary=words),
        progress=lambda stage, done, total: stages.append(stage),
    )
    assert (index.vocab_size, index.dim, index.default_head) == (V, D, "screen")
    assert index.heads == ("full", "sketch", "screen")
    assert index.vocabulary == tuple(words)
    hidden_states = make_contexts(200, seed=3)
    right = index.head().topk(hidden_states, 1).ids == index.head("full").topk(hidden_states, 1).ids
    assert right.mean() > 0.9
    expected = "basis, codes, label, label held-out, train, log Z, judge, calibrate, write"
    assert ", ".join(dict.fromkeys(stages)) == expected
    assert open_index(tmp_path / "models" / "lm" / "1").digest == index.digest
    assert index.manifest.config["fallback"] == "sketch"
    assert [path.name for path in (tmp_path / "models" / "lm").iterdir()] == ["1"]


def test_calibration_holds_every_head_and_batch(tmp_path: Path) -> None:
    index = build(**arguments(out=tmp_path / "lm" / "1"))
    points = measured(index)["points"]
    assert [(point["head"]["name"], point["rows"]) for point in points] == [
        (name, rows) for name in ("full", *("sketch" for _ in GRADES), "screen") for rows in BATCHES
    ]
    for point in points:
        assert point["us_per_row"] > 0
        assert 0 < point["mass_kept"] <= 1 + 1e-6
        assert point["precision"].keys() == {"1", "5", "10"}
        assert all(each["low"] <= each["mean"] for each in point["precision"].values())
    assert [point["max_error"] for point in points[:: len(BATCHES)]] == [0.0, *GRADES, 1.0]
    assert points[0]["precision"]["5"]["mean"] == 1
    assert points[0]["candidates"] == V
    assert points[-1]["candidates"] < V
    assert measured(index)["machine"].keys() >= {"cpu", "date", "threads", "numpy", "numba"}


@pytest.mark.parametrize("asked", ["given", "bfloat16"])
def test_all_is_fitted_to_stored_values(
    tmp_path: Path, asked: Literal["given", "bfloat16"]
) -> None:
    half = narrowed(SOFTMAX.weight, "bfloat16")
    weight, config = half if asked == "given" else SOFTMAX.weight, replace(CONFIG, dtype=asked)
    given = arguments(weight=weight, heads=("full", "screen"), config=config)
    index = build(**given, out=tmp_path / "lm" / "1")
    wide = {**given, "weight": widened(half), "config": CONFIG}
    plain = build(**wide, out=tmp_path / "lm" / "2")
    assert (index.manifest.dtype, plain.manifest.dtype) == ("BF16", "F32")
    assert index.manifest.config["dtype"] == asked
    assert index.manifest.heads == plain.manifest.heads
    np.testing.assert_array_equal(index.softmax.stored, half)
    one, two = (dict(read_contents(each.path).parts["screen"]) for each in (index, plain))
    np.testing.assert_equal(one, two)
    judged, same = (
        [point["precision"] for point in measured(each)["points"]] for each in (index, plain)
    )
    assert judged == same


def test_exact_needs_no_fit_and_judges_are_limited(tmp_path: Path) -> None:
    index = build(**arguments(out=tmp_path / "lm" / "1", heads=("full",)))
    assert (index.heads, index.default_head) == (("full",), "full")
    config = BuildConfig(**{**vars(CONFIG), "heldout_rows": 100})
    asked = arguments(out=tmp_path / "lm" / "2", config=config)
    assert measured(build(**asked, heldout=make_contexts(700)))["heldout_rows"] == 100


def test_a_sketch_slower_than_all_logits_is_left_out_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "logitsieve.index_builder.fit.sketch.fastest", lambda choices, us: min(choices)
    )
    index = build(**arguments(out=tmp_path / "lm" / "1"))
    assert (index.heads, index.manifest.config["fallback"]) == (("full", "screen"), "full")
    note = index.manifest.config["sketch_note"]
    assert note.startswith("the head sketch takes no less time than all logits")
    assert note in caplog.text
    index = build(**arguments(out=tmp_path / "lm" / "2", heads=("full", "sketch")))
    assert index.heads == ("full", "sketch")
    assert "sketch_note" not in index.manifest.config


def test_a_target_is_met(tmp_path: Path) -> None:
    target = {"p1": 0.95, "p5": 0.9}
    asked = arguments(out=tmp_path / "lm" / "1", contexts=make_contexts(4000))
    index = build(**asked, target_precision=target)
    points = measured(index)["points"]
    screen = next(point for point in points if point["head"]["name"] == "screen")
    assert screen["precision"]["1"]["low"] >= target["p1"]
    assert screen["precision"]["5"]["low"] >= target["p5"]
    assert index.head("screen").knobs["escalate"] == screen["head"]["knobs"]["escalate"] > 0
    heldout = make_contexts(4000)[3600:]
    judged = evaluate(index.head("screen"), index.head("full"), [heldout], (5,))
    escalated = index.manifest.heads["screen"].config["escalated"]
    assert judged.coverage[5] == pytest.approx(1 - escalated)


def test_misses_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    poor = replace(CONFIG, budget=1.0, clusters=2)
    index = build(**arguments(out=tmp_path / "lm" / "1", config=poor))
    point = next(p for p in measured(index)["points"] if p["head"]["name"] == "screen")
    assert point["precision"]["1"]["mean"] < 0.95
    assert "the head screen, which answers by default, finds the best id of " in caplog.text
    caplog.clear()
    build(**arguments(out=tmp_path / "lm" / "2", heads=("full", "sketch")))
    assert not caplog.text


def test_a_target_beyond_proof_is_refused_before_labels(tmp_path: Path) -> None:
    target, stages = {"p1": 0.998, "p5": 0.5}, list[str]()
    wanted = arguments(out=tmp_path / "models" / "lm" / "1", target_precision=target)
    wanted["progress"] = lambda stage, done, total: stages.append(stage)
    with pytest.raises(InvalidRequest, match=r"p1=0.998 with 150 held-out .* allowed: 2,703"):
        build(**wanted)
    with pytest.raises(InvalidRequest, match="1,351 or more, in `heldout`: captured from about 5 "):
        build(**wanted, heldout=make_contexts(100))
    assert not stages
    assert not list(tmp_path.iterdir())
    index = build(**wanted, best_effort=True)
    assert index.heads == ("full", "sketch", "screen")


def changing(weight: Any, stage: str, *, back: str = "") -> Callable[[str, int, int], None]:
    """A progress that writes to `weight` as `stage` begins, and undoes that at the stage `back`."""
    stages: list[str] = []

    def progress(name: str, done: int, total: int) -> None:
        if name not in stages:
            stages.append(name)
            if name == stage:
                weight[7:] *= 2
            elif name == back:
                weight[7:] /= 2

    return progress


def mapped(folder: Path, weight: np.ndarray) -> np.ndarray:
    np.save(folder / "W.npy", weight)
    return np.asanyarray(np.load(folder / "W.npy", mmap_mode="r+"))


SHARED: dict[str, Callable[[Path, np.ndarray], tuple[Any, Any]]] = {  # what is built from, written
    "array": lambda _, weight: (weight, weight),
    "read-only view": lambda _, weight: (np.broadcast_to(weight, weight.shape), weight),
    "half": lambda _, weight: (half := weight.astype(np.float16), half),
    "memmap": lambda folder, weight: (array := mapped(folder, weight), array),
    "file": lambda folder, weight: (folder / "W.npy", mapped(folder, weight)),
    "tensor": lambda _, weight: (torch.from_numpy(weight).requires_grad_(), weight),
}


@pytest.mark.parametrize(("form", "stage"), list(zip(SHARED, cycle(["basis", "write"]))))
def test_a_matrix_that_changes_is_refused(tmp_path: Path, form: str, stage: str) -> None:
    (folder := tmp_path / "input").mkdir()
    weight, written = SHARED[form](folder, SOFTMAX.weight.copy())
    wanted = arguments(out=tmp_path / "models" / "lm" / "1", weight=weight)
    wanted["heads"] = ("full", "sketch")
    with refused("weight", "changed while the index was built"):
        build(**wanted, progress=changing(written, stage))
    assert list(tmp_path.iterdir()) == [folder]
    index = build(**wanted)
    np.testing.assert_array_equal(index.softmax.weight, written)


def test_a_change_that_is_undone_is_refused(tmp_path: Path) -> None:
    """A sketch of numbers that are in no file would prove what is not so."""
    weight = SOFTMAX.weight.copy()
    progress = changing(weight, "basis", back="codes")
    wanted = arguments(out=tmp_path / "lm" / "1", weight=weight, heads=("sketch",))
    with refused("weight", "changed while the index was built"):
        build(**wanted, progress=progress)
    assert not list(tmp_path.iterdir())


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("weight", {"weight": np.zeros(4, np.float32)}),
    ("weight", {"weight": "nothing.npy"}),
    ("weight[0, 0]", {"weight": np.full((V, D), 1e5), "config": BuildConfig(dtype="float16")}),
    ("weight", {"weight": np.ma.masked_less(np.zeros((V, D), np.float32), 1)}),
    ("bias", {"bias": np.ma.masked_less(np.zeros(V, np.float32), 1)}),
    ("bias", {"bias": np.zeros(V - 1, np.float32)}),
    ("bias", {"bias": np.full(V, -np.inf, np.float32)}),
    ("contexts", {"contexts": make_contexts(100, dim=D + 1)}),
    ("contexts", {"contexts": np.ma.masked_less(np.zeros((100, D), np.float32), 1)}),
    ("contexts", {"contexts": make_contexts(1)}),
    ("heldout", {"heldout": make_contexts(10, dim=3)}),
    ("heldout", {"heldout": np.full((100, D), np.nan, np.float32)}),
    ("vocabulary", {"vocabulary": ["one"]}),
    ("heads", {"heads": ("full", "certain")}),
    ("fallback", {"config": BuildConfig(fallback="svd")}),
    ("fallback", {"config": BuildConfig(fallback="sketch"), "heads": ("full", "screen")}),
    ("target_precision", {"target_precision": {"p7": 0.5}}),
    ("target_precision", {"target_precision": {"p1": 0.5}, "heads": ("full",)}),
    ("best_effort", {"best_effort": True}),
    ("out", {"out": "lm/first"}),
]


@pytest.mark.parametrize(("field", "changes"), WRONG)
def test_wrong_arguments_write_nothing(tmp_path: Path, field: str, changes: dict[str, Any]) -> None:
    out = tmp_path / changes.get("out", "lm/1")
    with refused(field):
        build(**arguments(**{**changes, "out": out}))
    assert not list(tmp_path.iterdir())


def test_what_a_killed_build_left_is_swept_after_a_day(tmp_path: Path) -> None:
    """Also beside folders that the build has yet to make."""
    stale, young = tmp_path / ".tmp-build-stale", tmp_path / ".tmp-build-young"
    for folder in (stale, young):
        folder.mkdir()
        (folder / "labels.npy").touch()
    old = time.time() - 25 * 3600
    os.utime(stale, (old, old))
    with pytest.raises(InvalidRequest):
        build(**arguments(out=tmp_path / "lm" / "1", contexts="nothing.npy"))
    assert [path.name for path in tmp_path.iterdir()] == [young.name]


def test_an_existing_out_stays_and_the_bias_is_read_once(tmp_path: Path) -> None:
    out = tmp_path / "lm" / "1"
    out.mkdir(parents=True)
    with pytest.raises(InvalidRequest, match="exists"):
        build(**arguments(out=out))
    assert not list(out.iterdir())
    bias = SOFTMAX.bias.copy()
    wanted = arguments(out=tmp_path / "lm" / "2", bias=bias, heads=("sketch",))
    index = build(**wanted, progress=changing(bias, "basis"))
    np.testing.assert_array_equal(index.softmax.bias, SOFTMAX.bias)


@pytest.mark.parametrize("unseen", [False, True])
def test_a_promise_without_unseen_text_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, unseen: bool
) -> None:
    heldout = make_contexts(400, seed=3) if unseen else None
    wanted = {"target_precision": {"p1": 0.8}, "heads": ("full", "screen"), "best_effort": True}
    build(**arguments(out=tmp_path / "lm" / "1", heldout=heldout, **wanted))
    said = "no `heldout` contexts of unseen text are given. The last tenth judges"
    assert (said in caplog.text) != unseen


@pytest.mark.parametrize("dim", [16, 208])
def test_a_build_without_contexts(tmp_path: Path, dim: int) -> None:
    softmax = make_softmax(vocab_size=300, dim=dim)
    out, again = tmp_path / "lm" / "1", tmp_path / "lm" / "2"
    index = build(softmax.weight, softmax.bias, None, out, progress=None)
    assert index.heads == ("full", "sketch")
    assert (index.default_head, index.calibration) == ("sketch", None)
    hidden_states = make_contexts(20, dim)
    best = LocalDecoder(index).topk(hidden_states, 3)
    assert (best.answer.head, best.answer.max_error) == ("sketch", 1e-15)
    assert not best.answer.proven.any()
    np.testing.assert_array_equal(best.ids, index.head("full").topk(hidden_states, 3).ids)
    assert build(softmax.weight, softmax.bias, None, again, progress=None).digest == index.digest


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"heads": ("full", "screen")}, "contexts: got nothing, .*head screen"),
        ({"heldout": np.ones((5, D), np.float32)}, "heldout: got"),
        ({"target_precision": {"p1": 0.9}}, "contexts: got nothing, .*target_precision"),
    ],
)
def test_what_needs_contexts(tmp_path: Path, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        build(SOFTMAX.weight, SOFTMAX.bias, None, tmp_path / "lm" / "1", **given)
    assert not (tmp_path / "lm").exists()
