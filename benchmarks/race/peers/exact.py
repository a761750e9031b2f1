"""The exact softmax of numpy, torch and faiss: what speed-ups are measured against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from benchmarks.baselines import faiss_exact, numpy_exact, torch_exact
from benchmarks.race.methods import Peer
from benchmarks.timing import Search
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax

MAKERS: dict[str, tuple[Callable[[Softmax], Search], int]] = {  # and which result holds the ids
    "numpy": (numpy_exact, 0),
    "torch": (torch_exact, 1),
    "faiss IndexFlatIP": (faiss_exact, 1),
    "torch bfloat16": (lambda softmax: torch_exact(softmax, torch.bfloat16), 1),
}


class ExactPeer(Peer):
    """One of `MAKERS`; libraries that keep a copy of W could share it, so none is counted."""

    nbytes = 0

    def __init__(self, name: str, softmax: Softmax) -> None:
        self.name = name
        make, self._place = MAKERS[name]
        self._search = make(softmax)

    def topk(self, hidden: Float32, k: int) -> np.ndarray:
        """Ids of a full product; bfloat16 rounds, so that it is not exact."""
        return np.asarray(self._search(hidden, k)[self._place])  # type: ignore[index]
