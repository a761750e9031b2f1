"""Rows of W that are kept beside the shards too: those that answers need most often.

Their k-th best logit is a floor for the rows of every shard, and they answer for a lost one.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers, R replicated rows.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Float32
from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.spec import Arrays, PartSpec, TensorSpec
from logitsieve.heads.certified import SKETCH, CertifiedHead
from logitsieve.heads.sharded.shard import Best, Shard


def _check_arrays(arrays: Arrays) -> None:
    if (np.diff(arrays["ids"]) <= 0).any():
        raise ValueError("ids do not rise")
    SKETCH.structure(arrays)


REPLICATED = PartSpec(
    "replicated",
    {
        **SKETCH.tensors,
        "fine": TensorSpec("uint8", ("R", "T"), "codes"),
        "order": TensorSpec("int32", ("R",), "ids", "R"),
        "ids": TensorSpec("int32", ("R",), "ids", "V"),
        "weight": TensorSpec("float32", ("R", "D")),
        "bias": TensorSpec("float32", ("R",)),
    },
    structure=_check_arrays,
    values=SKETCH.values,
)


class ReplicatedRows:
    """The part `replicated` of an index in shards; `norms` are the whole's `Softmax.norms`."""

    def __init__(self, arrays: Arrays, norms: tuple[float, float], threads: int = 1) -> None:
        self.ids, self._arrays = arrays["ids"], arrays
        softmax = Softmax(arrays["weight"], arrays["bias"], norms)
        certified = CertifiedHead(softmax, arrays, threads=threads)
        self._rows = Shard(0, softmax, {"certified": certified})

    def on(self, threads: int) -> ReplicatedRows:
        """The same, whose `best` takes so many threads."""
        return ReplicatedRows(self._arrays, self._rows.norms, threads)

    def best(self, hidden: Float32, k: int) -> Best:
        """The k best of them, or all if they are fewer."""
        best = self._rows.best("certified", hidden, k)
        return best._replace(ids=self.ids[best.ids])

    def warm(self) -> None:
        """Compile the kernels of `best`."""
        self.best(np.zeros((1, self._rows.dim), np.float32), 1)
