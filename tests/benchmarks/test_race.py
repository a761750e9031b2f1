from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import plots
from benchmarks.race import ours, run, table
from benchmarks.race.judge import Judge
from benchmarks.race.methods import Entrant, Knobs, Method, augmented
from benchmarks.race.peers import centroid_head
from benchmarks.race.peers.adaptive_softmax import AdaptiveSoftmax, label
from benchmarks.race.peers.centroid_head import CentroidHead
from benchmarks.race.peers.exact import MAKERS, ExactPeer
from benchmarks.race.peers.faiss_panorama import FaissPanorama
from benchmarks.race.peers.greedy_mips import GreedyMips
from benchmarks.race.peers.hnsw import Hnswlib
from benchmarks.race.peers.pca_tree import PcaTree
from benchmarks.race.peers.scann import Scann
from benchmarks.race.points import HALF, QUANTISED, Race
from logitsieve.api.results import Float32
from logitsieve.heads import HEADS, Softmax
from tests.synthetic import make_hidden, make_softmax

SOFTMAX = make_softmax(400, 24, seed=3)
HIDDEN = make_hidden(37, 24, seed=4)


def quiet(stage: str, done: int, total: int) -> None:
    assert 0 <= done <= total, stage


def make_judge(softmax: Softmax = SOFTMAX) -> Judge:
    return Judge(softmax, HIDDEN, (1, 5), quiet)


def best(softmax: Softmax, k: int) -> np.ndarray:
    logits = HIDDEN.astype(np.float64) @ softmax.weight.T.astype(np.float64) + softmax.bias
    return np.asarray(np.argsort(-logits, axis=1)[:, :k])


def test_the_judge_finds_what_is_exact_and_counts_what_is_missing() -> None:
    ids = best(SOFTMAX, 6)
    judge = make_judge()
    assert judge.score(ids[:, :5]).precision() == {1: 1.0, 5: 1.0}
    missed = judge.score(ids[:, 1:])
    assert missed.precision() == {1: 0.0, 5: pytest.approx(0.8)}
    doubled = Softmax(np.repeat(SOFTMAX.weight, 2, axis=0), np.repeat(SOFTMAX.bias, 2))
    ids = best(doubled, 6)[:, [0, 1, 2, 3, 5]]  # of the third pair the other word
    assert make_judge(doubled).score(ids).precision() == {1: 1.0, 5: 1.0}
    ids = best(SOFTMAX, 5)
    ids[:, 4] = -1  # not found
    assert make_judge().score(ids).precision() == {1: 1.0, 5: pytest.approx(0.8)}


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (np.zeros((37, 5), np.int64), "repeated"),
        (np.tile(np.arange(396, 401), (37, 1)), "allowed"),
        (np.zeros((37, 4), np.int64), "wanted"),
    ],
)
def test_the_judge_refuses_ids_that_no_method_may_give(ids: np.ndarray, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_judge().score(ids)


PEERS: dict[str, Callable[[], Method]] = {
    **{name: partial(ExactPeer, name, SOFTMAX) for name in MAKERS if "16" not in name},
    "panorama": lambda: FaissPanorama(SOFTMAX, 4),
    "hnswlib ip": lambda: Hnswlib(SOFTMAX, "ip"),
    "hnswlib l2": lambda: Hnswlib(SOFTMAX, "l2"),
    "scann": lambda: Scann(SOFTMAX, tree=False),
    "scann tree": lambda: Scann(SOFTMAX, tree=True),
    "FGD": lambda: ours.fgd(SOFTMAX, lambda: best(SOFTMAX, 5), (1, 2)),
    "LSH-MIPS": lambda: ours.lsh_mips(SOFTMAX, 2, (1, 2)),
}


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_peer_at_its_widest_setting_is_exact(name: str, threads: int) -> None:
    if (needed := name.split()[0]) in ("hnswlib", "scann"):
        pytest.importorskip(needed, reason=f"{needed} is not installed: pip install '.[bench]'")
    method = PEERS[name]()
    widest = method.settings[-1]
    if name == "scann tree":
        widest = {**widest, "leaves": method.built["leaves"]}
    method.set_knobs(threads, widest)
    score = make_judge().score(method.topk(HIDDEN, 5))
    assert score.precision() == {1: 1.0, 5: 1.0}
    np.testing.assert_array_equal(method.topk(HIDDEN[:1], 5), method.topk(HIDDEN, 5)[:1])


@pytest.mark.parametrize(
    ("make", "knob", "values"),
    [
        (GreedyMips, "budget", (16, 100, 400)),
        (partial(PcaTree, leaf=16), "leaves", (1, 4, 0)),
        (CentroidHead, "probes", (1, 4, 8)),
    ],
)
def test_precision_grows_with_a_knob_up_to_the_exact_answer(
    monkeypatch: pytest.MonkeyPatch, make: Any, knob: str, values: tuple[int, ...]
) -> None:
    monkeypatch.setattr(centroid_head, "WORDS", 50)
    method, found = make(SOFTMAX), []
    for value in values:
        method.set_knobs(2, {knob: value or 1 << int(method.built["depth"])})
        found.append(make_judge().score(method.topk(HIDDEN, 5)).precision()[5])
    assert found == sorted(found)
    assert found[-1] == 1.0


def test_greedy_candidates_are_the_rows_with_the_largest_single_products() -> None:
    method = GreedyMips(SOFTMAX)
    method.set_knobs(1, {"budget": 30})
    rows = augmented(SOFTMAX)
    for query, ids in zip(HIDDEN, method.topk(HIDDEN, 5), strict=True):
        ones = np.append(query, np.float32(1))
        listed = np.argsort(-(rows * ones).max(axis=1))[:30]
        wanted_ids = listed[np.argsort(-(rows[listed] @ ones))][:5]
        np.testing.assert_array_equal(ids, wanted_ids)


def test_adaptive_softmax_finds_frequent_words_and_opens_clusters() -> None:
    contexts = make_hidden(600, 24, seed=5)
    labels = label(SOFTMAX, contexts)
    method = AdaptiveSoftmax(SOFTMAX, labels, first=150)
    method.set_knobs(1, {})
    ids = method.topk(contexts, 5)
    assert (np.sort(ids, axis=1)[:, 1:] > np.sort(ids, axis=1)[:, :-1]).all()
    assert (ids[:, 0] == labels[1][:, 0]).mean() > 0.5
    frequent = np.bincount(labels[1].ravel(), labels[2].ravel(), minlength=400).argsort()[::-1]
    assert not np.isin(ids, frequent[:150]).all()


NARROW = {"torch bfloat16": HALF, "onnxruntime int8": QUANTISED, "llama.cpp Q4_0": QUANTISED}


def point(method: str, us: float, p1: float, **knobs: float) -> dict[str, Any]:
    return {
        "method": method,
        "kind": NARROW.get(method, "other"),
        "built": {},
        "knobs": knobs,
        "p1": p1,
        "p5": p1,
        "build_seconds": 1.0,
        "bytes_beyond_w": 10,
        "us_per_row": {"B=1 threads=1": {"median": us, "least": us, "most": us}},
    }


RESULTS: dict[str, Any] = {
    "data": "tiny",
    "provenance": "made up",
    "machine": {"cpu": "a cpu", "read_GBps": {"L3": 1.0, "DRAM": 1.0}},
    "versions": {"numpy": "2"},
    "vocab_size": 400,
    "dim": 24,
    "k": 5,
    "judged_contexts": 37,
    "modes": ["B=1 threads=1"],
    "weight_bytes": 1000,
    "points": [
        point("numpy", 100, 1.0),
        point("torch", 120, 1.0),
        point("logitsieve screen", 2, 0.97, probes=1),
        point("logitsieve screen", 4, 0.985, probes=2),
        point("logitsieve screen", 8, 0.99, probes=3),
        point("ScaNN", 50, 0.5, ef=1),
    ],
}


def cells(text: str, column: int) -> list[str]:
    """A column of our own rows."""
    rows = (line for line in text.splitlines() if "| logitsieve" in line)
    return [row.split("|")[column].strip() for row in rows]


def test_the_table_has_the_fastest_precise_setting_and_the_most_precise_one() -> None:
    assert Race(RESULTS).exact() == ("numpy", 100, 1, 1)
    assert cells(table.markdown(RESULTS), 3) == ["25.0x", "12.5x"]
    assert cells(table.markdown(RESULTS), -2) == ["probes 2", "probes 3"]
    assert [entry["knobs"] for entry in table.chosen(Race(RESULTS), "ScaNN")] == [{"ef": 1}]
    with pytest.raises(ValueError, match="to compare with"):
        table.markdown({**RESULTS, "points": RESULTS["points"][2:]})


def test_cold_times_stand_beside_warm_ones_over_a_cold_baseline() -> None:
    cold = {"B=1 threads=1": {"median": 400.0, "least": 400.0, "most": 400.0}}
    points = [{**entry, "cold_us_per_row": cold} for entry in RESULTS["points"]]
    points[0] = {**points[0], "cold_us_per_row": {"B=1 threads=1": {"median": 1000.0}}}
    text = table.markdown({**RESULTS, "points": points, "cleared_bytes": 96_000_000})
    assert "96 MB pass through the cache" in text
    assert "cold B=1 threads=1: torch, 400.0" in text
    assert cells(text, 3) == ["25.0x", "12.5x"]
    assert cells(text, 4) == ["1.0x", "1.0x"]
    assert "cold" not in table.markdown(RESULTS)


def test_the_table_compares_with_the_best_quantised_head_that_is_precise_enough() -> None:
    assert Race(RESULTS).narrow() is None
    half = [*RESULTS["points"], point("torch bfloat16", 30, 0.99)]
    assert Race({**RESULTS, "points": half}).narrow() is None
    raced = [*half, point("onnxruntime int8", 40, 0.995), point("llama.cpp Q4_0", 20, 0.97)]
    results = {**RESULTS, "points": raced}
    assert Race(results).narrow() == ("torch bfloat16", 30, 0.99, 0.99)
    written = table.markdown(results)
    assert cells(written, 3) == ["25.0x (7.5x)", "12.5x (3.8x)"]
    assert "torch bfloat16, 30.0 µs, P@1 0.9900" in written


def test_one_half_of_the_contexts_chooses_and_the_other_judges() -> None:
    class AsStored(Method):
        name, kind, nbytes = "numpy", "dense float32", 0

        def set_knobs(self, threads: int, knobs: Knobs) -> None:
            pass

        def topk(self, hidden_states: Float32, k: int) -> np.ndarray:
            return np.tile(np.arange(k), (len(hidden_states), 1))

    hidden_states = make_hidden(2 * run.STRETCH + 7, 24, seed=6)
    judge = Judge(SOFTMAX, hidden_states, (1, 5), quiet)
    choosing = run.chooses(len(hidden_states))
    assert choosing.sum() == run.STRETCH + 7
    entry = run.record(AsStored(), {}, judge, np.repeat("all", len(hidden_states)), 0.0)
    best_ids = (hidden_states @ SOFTMAX.weight.T + SOFTMAX.bias).argmax(1)
    assert entry["chosen_by"]["p1"] == (best_ids[choosing] == 0).mean()
    assert entry["p1"] == entry["p1_by_kind"]["all"] == (best_ids[~choosing] == 0).mean()
    lucky = {**point("logitsieve screen", 1, 0.99, probes=9), "chosen_by": {"p1": 0.9, "p5": 0.9}}
    results = {**RESULTS, "points": [*RESULTS["points"], lucky]}
    assert table.chosen(Race(results), "logitsieve screen") == RESULTS["points"][3:5]


def test_every_head_has_a_kind() -> None:
    assert set(ours.KINDS) == set(HEADS)


def test_a_peer_that_is_not_installed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def make() -> Method:
        raise ModuleNotFoundError("No module named 'fast'")

    assert run.judge_all([Entrant("fast", make)], make_judge(), np.array([]), quiet)[1] == []
    assert "fast is left out: No module named 'fast'" in capsys.readouterr().out


def test_pictures_name_methods_and_their_frontier(tmp_path: Path) -> None:
    plots.draw_race(RESULTS, tmp_path)
    drawn = (tmp_path / "tiny.svg").read_text(encoding="utf-8")
    assert "logitsieve screen" in drawn
    assert drawn.startswith("<?xml")
    points = [(0.9, 10.0), (0.95, 5.0), (0.94, 4.0), (0.9, 9.0), (1.0, 1.0)]
    assert plots.frontier(points) == [(1.0, 1.0), (0.95, 5.0), (0.9, 10.0)]
