"""A decoder over an index in shards: the answers of the index that was split.

It is `LocalDecoder` over heads that ask every shard and merge what they get (heads/sharded), so
constraints, filters, scores and beams are decided once, in one place, as they are over one W.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest, ShardUnavailable
from logitsieve.api.requests import Beams, Sampling
from logitsieve.api.results import (
    Answer,
    ArrayLike,
    BeamStepReply,
    Bool,
    Float32,
    Int32,
    RowRange,
    SampleReply,
    ScoreReply,
    TopKReply,
)
from logitsieve.decoding.decoder import LocalDecoder
from logitsieve.decoding.engine import NO_LOG_Z, Engine
from logitsieve.decoding.log_z import PrintedLogZ
from logitsieve.heads.sharded import ShardedSoftmax
from logitsieve.index import Index

R = TypeVar("R", TopKReply, ScoreReply, SampleReply, BeamStepReply)
Missing = Literal["refuse", "answer"]


class ShardedDecoder(LocalDecoder):
    """Answers from an open index in shards. Any number of threads may call it.

    Ids, logits, draws, beams and an exact log Z are those of the whole index, bit for bit; a log Z
    by bounds is another estimate in another proven interval. The normalizers `lowrank` and
    `sampled`, and draws by a head that proves nothing, need all of W: they are refused.

    A shard that cannot be asked raises ShardUnavailable. That is the answer (`missing` "refuse"),
    or the request is answered from the other shards ("answer"): its `answer.rows_missing` are the
    rows of the lost ones. Of those answers `topk` without constraints is `exact` where the index's
    bounds prove that no missing row belongs to it; no other is, and log Z has no upper bound.
    """

    in_shards: ClassVar[bool] = True

    def __init__(self, index: Index, *, name: str = "", missing: Missing = "refuse") -> None:
        if missing not in ("refuse", "answer"):
            raise InvalidRequest("missing", repr(missing), "'refuse' or 'answer'")
        super().__init__(index, name=name)
        if missing == "answer":
            self._engine = ShardedEngine

    def warm(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Compile every kernel that a request may need, so that none waits for a compiler."""
        self.index.warm(progress)
        zeros = np.zeros((1, self.index.dim), np.float32)
        self.beam_step(zeros, beams_in=1, beams_out=1)
        self.sample(zeros, top_k=1)
        for head in set(self.index.heads) & {"exact", "certified"}:
            self.sample(zeros, head=head)
            self.sample(zeros, head=head, top_p=0.5)


class ShardedEngine(Engine):
    """An engine that answers without the shards that cannot be asked, and says so.

    Each request asks all shards anew, and begins anew without those that fail.
    """

    def topk(self, hidden: ArrayLike, k: int, constraints: Constraints | None = None) -> TopKReply:
        """The k best tokens of each row of `hidden` [B, D] or [D], of the shards that answer."""
        return self._ask(Engine.topk, hidden, k, constraints)

    def score(self, hidden: Float32, targets: Int32, constraints: Constraints | None) -> ScoreReply:
        """logit - log Z of `targets` [B, T], over the shards that answer; -inf for missing rows."""
        return self._ask(Engine.score, hidden, targets, constraints)

    def sample(
        self, hidden: Float32, sampling: Sampling, constraints: Constraints | None
    ) -> SampleReply:
        """Draws for each row of `hidden` [B, D], of the shards that answer."""
        return self._ask(Engine.sample, hidden, sampling, constraints)

    def beam_step(
        self, hidden: Float32, beams: Beams, constraints: Constraints | None
    ) -> BeamStepReply:
        """The best continuations of hypotheses among the tokens of the shards that answer."""
        return self._ask(Engine.beam_step, hidden, beams, constraints)

    def _ask(self, method: Callable[..., R], *request: Any) -> R:
        lost, proves = set[int](), method is Engine.topk and request[-1] is None
        while True:
            try:
                if not lost:
                    return method(self, *request)
                reply = method(self._without(lost, proves), *request)
            except ShardUnavailable as error:
                if error.first in lost:  # too few rows are left
                    raise
                lost.add(error.first)
            else:
                return reply if proves else _unproven(reply)

    def _without(self, lost: Collection[int], proves: bool) -> _PartialEngine:
        index = self._index.without_shards(lost, known=proves)
        head = index.head(self.head, **self.knobs)
        return _PartialEngine(self.model, index, head, self.normalizer, self.width)


class _PartialEngine(Engine):
    """An engine over some shards: its answers say which rows are missing."""

    def answer(
        self,
        started: int,
        provenance: tuple[Bool, Int32, Bool],
        normalizer: str,
        log_z: PrintedLogZ = NO_LOG_Z,
    ) -> Answer:
        """The origin of a reply, with the rows that are missing: they may add anything to log Z."""
        answer = super().answer(started, provenance, normalizer, log_z)
        softmax, high = self._index.softmax, answer.log_z_high
        assert isinstance(softmax, ShardedSoftmax)
        lost = sorted(RowRange(each.first, each.rows) for each in softmax.lost)
        if high is not None:
            high = np.where(np.isnan(high), high, np.float32(np.inf))
        return answer._replace(log_z_high=high, rows_missing=tuple(lost))


def _unproven(reply: R) -> R:
    answer = reply.answer
    return reply._replace(answer=answer._replace(exact=np.zeros_like(answer.exact)))


def decoder_of(index: Index, *, name: str = "") -> LocalDecoder:
    """The decoder over an index, in one piece or in shards."""
    kind = ShardedDecoder if index.manifest.shards else LocalDecoder
    return kind(index, name=name)
