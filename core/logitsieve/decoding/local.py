"""The in-process decoder; the service answers through it too, so both agree bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite
from time import perf_counter_ns

import numpy as np

from logitsieve.decoding.normalizers import find_normalizer
from logitsieve.heads.base import Head
from logitsieve.index import Index
from logitsieve.types.decoder import NormalizerName
from logitsieve.types.errors import InvalidKnob, InvalidRequest, ModelNotFound
from logitsieve.types.hidden import as_hidden
from logitsieve.types.results import Answer, ArrayLike, Float32, TopKReply

# Operating points kept: clients use a handful, and a stream of fresh knobs must not grow memory.
POINTS_KEPT = 64


class LocalDecoder:
    """Answers from one open index. Any number of threads may call it."""

    def __init__(self, index: Index, *, name: str = "") -> None:
        self.index = index
        self.name = name or index.name
        self.version = str(index.version)
        self._names = ("", self.name, f"{self.name}@{self.version}")
        self._head = lru_cache(maxsize=POINTS_KEPT)(self._make_head)

    def topk(
        self,
        hidden: ArrayLike,
        k: int,
        *,
        model: str = "",
        head: str = "",
        knobs: Mapping[str, float] | None = None,
        normalizer: NormalizerName | None = None,
    ) -> TopKReply:
        """The k best tokens of each row of `hidden` [B, D] or [D]; see `Decoder.topk`.

        Raises InvalidRequest naming the field, ModelNotFound unless `model` is this index.
        """
        if model not in self._names:
            raise ModelNotFound(f"model: got {model}, here is only {self._names[-1]}", "model")
        chosen = self._head(head, _point(knobs) if knobs else ())
        started = perf_counter_ns()
        top = chosen.topk(hidden, k)
        log_z = self._log_z(chosen, hidden, k, normalizer) if normalizer else None
        answer = Answer(
            model=self.name,
            version=self.version,
            digest=self.index.digest,
            head=chosen.name,
            knobs=chosen.knobs,
            exact=top.exact,
            scanned=top.scanned,
            # A head that proves nothing itself owes every proven row to its fallback.
            fallback=np.zeros(len(top.exact), np.bool_) if chosen.proves else top.exact.copy(),
            normalizer=normalizer or "",
            log_z=log_z,
            compute_ns=perf_counter_ns() - started,
        )
        return TopKReply(top.ids, top.logits, answer)

    def warm(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Compile every kernel a request may need, so that none waits for a compiler."""
        self.index.warm(progress)
        self.topk(np.zeros((1, self.index.dim), np.float32), 1, normalizer="candidates")

    def _make_head(self, name: str, knobs: tuple[tuple[str, float], ...]) -> Head:
        head = self.index.head(name)
        for knob, value in knobs:
            if knob not in head.knob_table:
                known = ", ".join(head.knob_table) or "no knobs"
                raise InvalidKnob(f"knobs.{knob}", value, known)
            if not isfinite(value):
                raise InvalidKnob(f"knobs.{knob}", value, "a finite number")
        return head.with_knobs(**dict(knobs))

    def _log_z(self, head: Head, hidden: ArrayLike, k: int, normalizer: str) -> Float32:
        rows = as_hidden(hidden, self.index.dim)
        exact = self._head("exact", ())
        return find_normalizer(normalizer)(head, exact, rows, k, self.index.vocab_size)


def _point(knobs: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    try:
        return tuple(sorted((name, float(value)) for name, value in knobs.items()))
    except (TypeError, ValueError) as error:
        raise InvalidRequest("knobs", knobs, "a number for each knob's name") from error
