"""A decoder held at one operating point: what its answers share is found once, not per request."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

from logitsieve.decoding.normalizers import find_normalizer
from logitsieve.heads.base import Head, ready_hidden
from logitsieve.index import Index
from logitsieve.types.results import Answer, ArrayLike, TopKReply


class Point:
    """One index answering through one head, with one normalizer ("" for none).

    Immutable; any number of threads may call it.
    """

    def __init__(self, model: str, index: Index, head: Head, exact: Head, normalizer: str) -> None:
        self.model, self.version, self.digest = model, str(index.version), index.digest
        self.head, self.knobs, self.normalizer = head.name, dict(head.knobs), normalizer
        self.proves = head.proves
        self._answering, self._exact = head, exact
        self._normalize = find_normalizer(normalizer) if normalizer else None
        self._dim, self._vocab_size = index.dim, index.vocab_size

    def topk(self, hidden: ArrayLike, k: int) -> TopKReply:
        """The k best tokens of each row of `hidden` [B, D] or [D]; InvalidRequest if not valid."""
        started = perf_counter_ns()
        head, normalize, log_z = self._answering, self._normalize, None
        if normalize is None:
            ids, logits, exact, scanned = head.topk(hidden, k)
        else:
            hidden = ready_hidden(hidden, self._dim)  # once for both
            ids, logits, exact, scanned = head.topk(hidden, k)
            log_z = normalize(head, self._exact, hidden, k, self._vocab_size)
        answer = Answer(
            self.model,
            self.version,
            self.digest,
            self.head,
            exact,
            scanned,
            # A head that proves nothing itself owes every proven row to its fallback.
            np.zeros(len(exact), np.bool_) if self.proves else exact.copy(),
            self.knobs.copy(),
            self.normalizer,
            log_z,
            0,
            perf_counter_ns() - started,
        )
        return TopKReply(ids, logits, answer)
