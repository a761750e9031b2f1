"""Attacks on `build`: a matrix that is written to meanwhile is refused, or never used."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32
from logitsieve.index import open_index
from logitsieve.index_builder import build
from tools.attacks import topk
from tools.attacks.matrices import contexts_of
from tools.attacks.tally import Tally

CALLS = 40  # of progress, at one of which W changes


def changing(random: Generator) -> Tally:
    """W changes at some call of progress, perhaps back again later.

    Either the build is refused and leaves nothing, or its answers are right for the W that it has.
    """
    V, D = int(random.integers(40, 400)), int(random.integers(2, 40))
    weight = random.standard_normal((V, D)).astype(np.float32)
    contexts = random.standard_normal((80, D)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lm" / "1"
        given, written = shared(Path(folder), weight, random)
        options: Any = {"heads": ("full", "sketch"), "progress": writer(written, random)}
        try:
            build(given, None, contexts, out, **options)
        except InvalidRequest as error:
            wrong = error.field != "weight" or (out.parent.exists() and any(out.parent.iterdir()))
            said = f"refused, with something left behind: {error}"
            return Tally().add(np.array([wrong]), lambda _: said)
        index = open_index(out, verify="full")
        k = int(random.integers(1, 1 + V // 16))
        hidden_states = contexts_of(random, index.softmax, topk.ROWS)
        tally = topk.judged(index.head("sketch", max_error=0.0), index.softmax, hidden_states, k)
        index.close()
    return tally


def shared(folder: Path, weight: Float32, random: Generator) -> tuple[Any, Float32]:
    """Return an array to build from, and the array that shares its memory."""
    import torch

    match random.integers(4):
        case 0:
            return weight, weight
        case 1:
            return torch.from_numpy(weight), weight
        case 2:
            return weight[::-1][::-1], weight
    np.save(folder / "W.npy", weight)
    mapped = np.load(folder / "W.npy", mmap_mode="r+")
    return (mapped if random.random() < 0.5 else folder / "W.npy"), mapped


def writer(weight: Float32, random: Generator) -> Callable[[str, int, int], None]:
    """A progress that adds to some rows of W once, and takes it away again or does not."""
    calls, first, again = 0, int(random.integers(CALLS)), int(random.integers(2 * CALLS))
    rows = random.permutation(len(weight))[: random.integers(1, len(weight))]
    added = 2.0 ** random.uniform(-20, 2)
    before = weight[rows].copy()

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal calls
        if calls == first:
            weight[rows] += np.float32(added)
        elif calls == again and again > first:
            weight[rows] = before
        calls += 1

    return progress


ATTACKS = {"builds-changing": changing}
