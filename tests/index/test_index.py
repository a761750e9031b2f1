from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import IndexUnreadable, InvalidKnob, InvalidRequest
from logitsieve.index import Index, open_index
from tests.index.samples import WORDS, read_manifest, replace_file, tiny_softmax, write_tiny
from tests.refusals import refused


@pytest.fixture
def index(tiny: Path, kernel_cache: Path) -> Iterator[Index]:
    with open_index(tiny, kernel_cache=kernel_cache) as opened:
        yield opened


def hidden_states(rows: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((rows, 3)).astype(np.float32)


def test_what_it_says_of_itself(index: Index, tiny: Path) -> None:
    assert (index.name, index.version, index.path) == ("demo", 1, tiny)
    assert (index.vocab_size, index.dim, index.threads) == (7, 3, 1)
    assert index.heads == ("full", "screen")
    assert index.default_head == "screen"
    assert index.manifest == read_manifest(tiny)
    assert index.digest == index.manifest.digest
    assert index.calibration is None
    assert index.vocabulary == tuple(WORDS)
    np.testing.assert_array_equal(index.softmax.weight, tiny_softmax().weight)


def test_the_vocabulary_is_read_when_asked_for(tiny: Path, kernel_cache: Path) -> None:
    data = (tiny / "vocabulary.txt").read_bytes()
    replace_file(tiny / "vocabulary.txt", b"\xff" * len(data))
    with (
        open_index(tiny, verify="sizes", kernel_cache=kernel_cache) as index,
        pytest.raises(IndexUnreadable, match=r"vocabulary\.txt: damaged"),
    ):
        _ = index.vocabulary


def test_heads_by_name(index: Index) -> None:
    assert index.head() is index.head("screen")
    assert (index.head("full").name, index.head("screen").knobs["probes"]) == ("full", 1)
    assert (index.head(probes=2).knobs["probes"], index.head().knobs["probes"]) == (2, 1)
    with pytest.raises(InvalidRequest, match="head: got 'svd', allowed: full, screen"):
        index.head("svd")
    with pytest.raises(InvalidKnob):
        index.head("screen", width=3)


def test_logits_are_those_of_the_softmax_and_of_heads(index: Index) -> None:
    rows, ids = hidden_states(5), np.random.default_rng(2).integers(0, 7, (5, 4))
    softmax = tiny_softmax()
    dense = rows.astype(np.float64) @ softmax.weight.T.astype(np.float64) + softmax.bias
    expected = np.take_along_axis(dense, ids, 1).astype(np.float32)
    found = index.logits(rows, ids)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    for kind in (np.uint8, np.int32, np.uint64):
        np.testing.assert_array_equal(index.logits(rows, ids.astype(kind)), found)
    np.testing.assert_array_equal(index.logits(rows.tolist(), ids.tolist()), found)
    np.testing.assert_array_equal(index.logits(rows[0], ids[:1]), found[:1])
    rows, ids = hidden_states(2), np.zeros((2, 3), np.int32)
    first = index.logits(rows, ids)
    first[:] = 0
    assert index.logits(rows, ids).any()
    rows = hidden_states(4)
    top = index.head("full").topk(rows, 7)
    np.testing.assert_array_equal(index.logits(rows, top.ids), top.logits)


WRONG: list[tuple[str, Any, Any]] = [
    *[
        ("ids", hidden_states(1), [[wrong]])
        for wrong in (7, -1, np.uint64(2**63), 2**70, 0.0, True, "0")
    ],
    ("ids", hidden_states(1), [0]),
    ("ids", hidden_states(1), [[]]),
    ("ids", hidden_states(1), [[0], [0]]),
    ("ids", hidden_states(2), [[0], [0, 1]]),
    ("hidden_states", np.zeros((1, 4), np.float32), [[0]]),
    ("hidden_states", np.zeros((0, 3), np.float32), [[0]]),
    ("hidden_states[0]", np.full((1, 3), np.nan, np.float32), [[0]]),
]


@pytest.mark.parametrize(("field", "rows", "ids"), WRONG)
def test_wrong_questions_are_named(index: Index, field: str, rows: Any, ids: Any) -> None:
    with refused(field):
        index.logits(rows, ids)


def test_warm_reports_each_head(index: Index) -> None:
    calls: list[tuple[str, int, int]] = []
    index.warm(lambda *call: calls.append(call))
    assert calls == [("warm", 1, 2), ("warm", 2, 2)]
    index.warm()


def test_a_closed_index_says_so_and_heads_in_use_live_on(index: Index) -> None:
    head, rows = index.head("screen"), hidden_states(3)
    before = head.topk(rows, 2)
    index.close()
    index.close()
    for used in (index.head, lambda: index.softmax, lambda: index.logits(rows, [[0]] * 3)):
        with pytest.raises(InvalidRequest, match="closed"):
            used()
    np.testing.assert_array_equal(head.topk(rows, 2).ids, before.ids)


def mappings(folder: Path) -> set[str]:
    """How this process has mapped files of a folder; "s": in memory once for all processes."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[1] for line in lines if str(folder) in line}


def test_processes_share_the_mapping_and_closing_lets_go_of_it(
    tiny: Path, kernel_cache: Path
) -> None:
    index = open_index(tiny, kernel_cache=kernel_cache)
    assert mappings(tiny) == {"r--s"}
    index.close()
    assert not mappings(tiny)
    assert index.vocab_size == 7


def test_its_text_its_calibration_and_no_vocabulary(tmp_path: Path, kernel_cache: Path) -> None:
    with open_index(write_tiny(tmp_path / "tiny" / "3")) as index:
        shown = repr(index)
    for part in (str(tmp_path / "tiny" / "3"), f"V={index.vocab_size}", f"D={index.dim}", "full"):
        assert part in shown
    out = write_tiny(tmp_path / "demo" / "3", vocabulary=None, calibration={"us": [1.5]})
    with open_index(out, kernel_cache=kernel_cache) as index:
        assert index.vocabulary is None
        assert index.calibration == {"us": [1.5]}
