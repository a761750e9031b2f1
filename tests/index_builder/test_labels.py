from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads import Softmax
from logitsieve.index_builder.data.contexts import Contexts
from logitsieve.index_builder.labels import exact_labels, shards_of
from logitsieve.index_builder.workers import Workers
from logitsieve.utils.stored import StoredMatrix
from tests.index_builder.clustered import make_contexts, make_exact
from tests.synthetic import make_softmax


def ignore(done: int, total: int) -> None:
    pass


@pytest.mark.parametrize("kind", ["F32", "F16"])
@pytest.mark.parametrize("workers", [0, 3])
def test_labels_of_shards_are_those_of_one_matrix(tmp_path: Path, workers: int, kind: str) -> None:
    """Rows that are equal, on both sides of each border, tie: the lower id comes first."""
    softmax = make_softmax(vocab_size=1100, dim=16)
    weight, bias = softmax.weight.copy(), softmax.bias.copy()
    for border in (256, 512, 768, 1024):
        weight[border : border + 40] = weight[border - 40 : border]
        bias[border : border + 40] = bias[border - 40 : border]
    stored = weight.astype(np.float16) if kind == "F16" else weight
    softmax = Softmax(StoredMatrix(kind, stored), bias)
    hidden = make_contexts(2500)
    shards = shards_of(softmax, 256 * softmax.matrix.row_bytes)
    assert [shard.value.first for shard in shards] == [0, 256, 512, 768, 1024]
    with ThreadPoolExecutor(3) as pool:
        labels = exact_labels(
            shards,
            Contexts([hidden[:1030], hidden[1030:]]),
            20,
            tmp_path / "labels.npy",
            ignore,
            Workers(pool if workers else None),
        )
    np.testing.assert_array_equal(labels, make_exact(softmax).topk(hidden, 20).ids)


def test_a_shard_with_fewer_rows_than_labels(tmp_path: Path) -> None:
    softmax, hidden = make_softmax(vocab_size=260, dim=16), make_contexts(30)
    contexts, file = Contexts([hidden]), tmp_path / "labels.npy"
    labels = exact_labels(shards_of(softmax, 1), contexts, 20, file, ignore, Workers())
    np.testing.assert_array_equal(labels, make_exact(softmax).topk(hidden, 20).ids)


def test_all_shards_refuse_what_the_whole_would(tmp_path: Path) -> None:
    softmax = make_softmax(vocab_size=600, dim=16)
    softmax.weight[599] *= 1e6
    hidden = make_contexts(40)
    hidden[33] = 1e33
    contexts = Contexts([hidden], "heldout")
    with pytest.raises(InvalidRequest) as caught:
        exact_labels(shards_of(softmax, 1), contexts, 5, tmp_path / "labels.npy", ignore, Workers())
    assert caught.value.field == "heldout[33]"


def test_the_disk_holds_the_labels_before_any_is_written(tmp_path: Path) -> None:
    """A full disk is then an OSError; a write to a hole in a mapped file would be a SIGBUS."""
    softmax, file = make_softmax(vocab_size=90, dim=16), tmp_path / "labels.npy"
    held: list[bool] = []

    class Watching(Executor):
        def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
            held.append(file.stat().st_blocks * 512 >= file.stat().st_size)
            raise InterruptedError

    contexts, workers = Contexts([make_contexts(5000)]), Workers(Watching(), tmp_path)
    with pytest.raises(InterruptedError):
        exact_labels(shards_of(softmax), contexts, 20, file, ignore, workers)
    assert held == [True]
