from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.index_builder.data.contexts import Contexts
from logitsieve.index_builder.fitting import BuildInputs, shared_heads
from logitsieve.index_builder.labels import exact_labels
from logitsieve.index_builder.workers import Workers
from logitsieve.utils.stored import StoredMatrix
from tests.index_builder.clustered import make_contexts
from tests.synthetic import make_head, make_softmax


@pytest.mark.parametrize("kind", ["F32", "F16"])
@pytest.mark.parametrize("workers", [0, 3])
def test_labels_are_the_exact_ones_of_ties_too(tmp_path: Path, workers: int, kind: str) -> None:
    softmax = make_softmax(vocab_size=1100, dim=16)
    weight, bias = softmax.weight.copy(), softmax.bias.copy()
    weight[256:296], bias[256:296] = weight[216:256], bias[216:256]
    stored = weight.astype(np.float16) if kind == "F16" else weight
    softmax = Softmax(StoredMatrix(kind, stored), bias)
    hidden, exact = make_contexts(2500), make_head("exact", softmax)
    contexts, file = Contexts([hidden[:1030], hidden[1030:]]), tmp_path / "labels.npy"
    with ThreadPoolExecutor(3) as pool:
        by = Workers(pool if workers else None)
        shared = shared_heads(softmax, {})["exact"]
        inputs = BuildInputs(softmax=softmax, train=contexts, heldout=contexts, workers=by)
        labels = exact_labels(inputs, shared, contexts, 20, file, "label")
    np.testing.assert_array_equal(labels, exact.topk(hidden, 20).ids)


def test_the_disk_holds_the_labels_before_any_is_written(tmp_path: Path) -> None:
    """A full disk is then an OSError; a write to a hole in a mapped file would be a SIGBUS."""
    softmax, file = make_softmax(vocab_size=90, dim=16), tmp_path / "labels.npy"
    held: list[bool] = []

    class Watching(Executor):
        def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
            held.append(file.stat().st_blocks * 512 >= file.stat().st_size)
            raise InterruptedError

    contexts, workers = Contexts([make_contexts(5000)]), Workers(Watching(), tmp_path)
    shared = shared_heads(softmax, {})["exact"]
    inputs = BuildInputs(softmax=softmax, train=contexts, heldout=contexts, workers=workers)
    with pytest.raises(InterruptedError):
        exact_labels(inputs, shared, contexts, 20, file, "label")
    assert held == [True]
