"""Options and results of draws from the whole softmax.

Shape letters: B batch rows, N draws.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from logitsieve.api.results import Float64, Int32, Int64, UInt64
from logitsieve.heads._base.head import Edits, edits_of_rows


class DrawOptions(NamedTuple):
    """Draws from softmax(scale x logits) for B rows of hidden.

    An id's noise depends on its row's seed, the step and the number of the draw.
    """

    samples: int  # per row
    seeds: UInt64  # [B]
    step: int = 0
    scale: float = 1.0  # 1 / temperature
    edits: Edits | None = None
    top_p: float = 1.0  # filters the ids, before min_p
    min_p: float = 0.0
    width: float = inf  # nats for log Z of `certified`, without filters
    first_id: int = 0  # row i of W has the noise of id first_id + i; a multiple of 32

    @property
    def filtered(self) -> bool:
        return self.top_p < 1.0 or self.min_p > 0.0

    def rows(self, rows: Int64) -> DrawOptions:
        """Select rows, in that order."""
        edits = None if self.edits is None else edits_of_rows(self.edits, rows)
        return self._replace(seeds=self.seeds[rows], edits=edits)


class Drawn(NamedTuple):
    """Draws, and log Z of the filtered ids."""

    ids: Int32  # [B, N]
    log_z: Float64  # [B, 4] TOP, VALUE, LOW and HIGH of kernels/topk/merge.py
    scanned: Int32  # [B] logits computed
