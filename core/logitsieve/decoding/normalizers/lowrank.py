"""log Z over all V, of which those that the head does not scan have a preview's logit in rank R.

Chen, Si, Kumar, Li, Hsieh 2019, Learning to Screen, section 7.3. R is the width of the index's
`svd` head, or of the head that answers, if it is one.

Shape letters: B batch rows, D hidden size, V vocabulary, T targets.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from logitsieve.api.results import Float32, Float64, Int32
from logitsieve.decoding.logit_edits import Edits
from logitsieve.decoding.normalizers.base import (
    LogZ,
    Normalizer,
    Prices,
    edited_slices,
    log_sum_exp_all,
)
from logitsieve.heads._base.head import Head
from logitsieve.heads.svd import SvdHead
from logitsieve.index import Index


class LowRankNormalizer(Normalizer):
    """log sum exp over exact logits of scanned rows and previews of all others."""

    name, code = "lowrank", 2

    def needs(self, head: Head) -> str:
        """The `svd` head, unless it answers."""
        return "" if head.name == "svd" else "svd"

    def log_z(
        self,
        index: Index,
        head: Head,
        hidden: Float32,
        k: int,
        edits: Edits | None,
        scale: float,
    ) -> LogZ:
        """O(V R) a row."""
        slices = edited_slices(index, hidden, edits, lambda rows: self._all(index, head, rows, k))
        return LogZ(np.concatenate([log_sum_exp_all(logits, scale) for _, logits in slices]))

    def target_logits(
        self, index: Index, head: Head, hidden: Float32, targets: Int32, edits: Edits | None
    ) -> tuple[LogZ, Float32 | Float64]:
        """Previews, too, for targets that the head does not scan."""
        log_z, chosen = [], []
        slices = edited_slices(index, hidden, edits, lambda rows: self._all(index, head, rows, 1))
        for rows, logits in slices:
            log_z.append(log_sum_exp_all(logits, 1.0))
            chosen.append(np.take_along_axis(logits, targets[rows], axis=1))
        return LogZ(np.concatenate(log_z)), np.concatenate(chosen)

    def cost(self, prices: Prices) -> float:
        """A pass of previews."""
        return prices.pass_us("svd")

    def _all(self, index: Index, head: Head, hidden: Float32, k: int) -> Float32:
        """[B, V] exact logits of what `head` scans, previews of all others."""
        logits = cast(SvdHead, self.source(index, head)).scores(hidden)
        scanned = head.candidates(hidden, k)
        rows = np.repeat(np.arange(len(hidden)), np.diff(scanned.offsets))
        logits[rows, scanned.ids] = scanned.logits
        return logits
