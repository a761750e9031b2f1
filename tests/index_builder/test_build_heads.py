"""Every head that is fitted: built, written, opened, asked."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from logitsieve.api.errors import IndexUnreadable
from logitsieve.index import Index, open_index, verify_index
from logitsieve.index_builder import BuildConfig, build
from tests.index.samples import forge, replace_file
from tests.index_builder.clustered import make_contexts
from tests.synthetic import make_softmax

HEADS = ("exact", "screen", "svd", "graph", "ivf", "frequency")
CONFIG = BuildConfig(clusters=8, rounds=1, steps=10, batch_rows=64, svd_width=8)
SOFTMAX = make_softmax(vocab_size=150, dim=16)
HIDDEN = make_contexts(200, seed=3)


def build_all(out: Path) -> Index:
    contexts = make_contexts(1200)
    return build(SOFTMAX.weight, SOFTMAX.bias, contexts, out, heads=HEADS, config=CONFIG)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, share_kernels: Callable[[Path], Path]) -> Index:
    folder = tmp_path_factory.mktemp("built")
    share_kernels(folder / ".cache" / "logitsieve")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        return build_all(folder / "lm" / "1")


def test_heads_are_nearly_right_and_equal_each_time(index: Index, tmp_path: Path) -> None:
    assert set(index.heads) == set(HEADS)
    true = index.head("exact").topk(HIDDEN, 1).ids
    for name in HEADS:
        assert (index.head(name).topk(HIDDEN, 1).ids == true).mean() > 0.9, name
    assert build_all(tmp_path / "lm" / "1").digest == index.digest
    assert "graph.safetensors" in verify_index(index.path)


@pytest.mark.parametrize("name", HEADS[1:])
def test_other_knobs_over_what_was_opened(index: Index, name: str) -> None:
    head = index.head(name)
    for knob, entry in head.knob_table.items():
        if entry.whole:
            most = head.with_knobs(**{knob: entry.high})
            assert most.knobs[knob] >= head.knobs[knob]
            assert most.topk(HIDDEN[:3], 5).ids.shape == (3, 5)


@pytest.mark.parametrize("verify", ["full", "sizes"])
def test_an_opened_index_answers_alike(index: Index, verify: str) -> None:
    again = open_index(index.path, verify="full" if verify == "full" else "sizes")
    assert again.digest == index.digest
    for name in HEADS:
        mine, theirs = index.head(name), again.head(name)
        assert mine.knobs == theirs.knobs
        for left, right in zip(mine.topk(HIDDEN, 5), theirs.topk(HIDDEN, 5), strict=True):
            np.testing.assert_array_equal(left, right)


def copied(index: Index, out: Path) -> Path:
    out.mkdir(parents=True)
    for file in index.path.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    return out


def spoil(path: Path, place: int) -> None:
    data = bytearray((path / "graph.safetensors").read_bytes())
    data[place] ^= 1
    replace_file(path / "graph.safetensors", bytes(data))


def test_faiss_reads_no_byte_that_its_digest_does_not_cover(index: Index, tmp_path: Path) -> None:
    """Also where nothing else is hashed."""
    path = copied(index, tmp_path / "lm" / "1")
    spoil(path, -900)
    for verify in ("full", "sizes"):
        with pytest.raises(IndexUnreadable, match=r"graph\.safetensors: damaged"):
            open_index(path, verify="full" if verify == "full" else "sizes")


def test_bytes_that_faiss_refuses_are_named(index: Index, tmp_path: Path) -> None:
    """A writer that wrote them vouched for them."""
    path = copied(index, tmp_path / "lm" / "1")
    data = (path / "graph.safetensors").read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    replace_file(path / "graph.safetensors", data[:header] + b"none" + data[header + 4 :])
    forge(path)
    with pytest.raises(IndexUnreadable, match="what faiss serialized"):
        open_index(path)
