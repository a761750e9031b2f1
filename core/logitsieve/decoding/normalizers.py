"""Normalizers compute log Z, the log of the sum of e^{scale x} over the logits x of a row.

`scale` is 1 / temperature, and the sum is over the ids that edits allow.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from math import inf
from typing import ClassVar, NamedTuple, Self, cast

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64, Provenance, UInt64
from logitsieve.decoding.logit_edits import BestLogits, ListedLogits, edit_candidates, token_logits
from logitsieve.heads._base.edits import Edits, among, answerable, keys_of
from logitsieve.heads._base.kernel_head import BestWithLogZ, Head
from logitsieve.heads.full import FullHead
from logitsieve.heads.sketch import SketchHead
from logitsieve.heads.svd import SvdHead
from logitsieve.index import Index
from logitsieve.kernels.sampling.log_z import csr_log_z
from logitsieve.kernels.sampling.lsh_softmax import sampled_log_z
from logitsieve.kernels.sampling.rounding import raise_log_z, round_log_probs, round_log_z
from logitsieve.kernels.topk.descriptor import masked_by
from logitsieve.kernels.topk.merge import FIELDS, HIGH, LOW, TOP, VALUE

LOGITS_AT_ONCE = 1 << 22  # 16 MiB of float32
SAMPLED_SHARE = 10  # k l / V for k candidates and l sampled ids, such as 10 sqrt(V) and sqrt(V)


class LogZ32(NamedTuple):
    """log Z of each row in float32 [B]."""

    value: Float32 | None
    low: Float32 | None = None  # proven bounds, rounded outward
    high: Float32 | None = None
    error: Float32 | None = None  # standard error of an estimate


class LogZ(NamedTuple):
    """log Z of each row in float64, as kernels compute it."""

    fields: Float64  # [B, 4] TOP, VALUE, LOW, HIGH of kernels/sampling/log_z.py
    scale: float = 1.0
    bounded: bool = True  # False if LOW and HIGH are infinite
    error: Float64 | None = None  # [B] standard error of an estimate

    @classmethod
    def estimate(cls, value: Float64, scale: float, error: Float64 | None = None) -> Self:
        fields = np.empty((len(value), FIELDS))
        fields[:, TOP], fields[:, VALUE] = 0.0, value
        return cls(fields, scale, False, error).unbounded()

    def unbounded(self) -> Self:
        self.fields[:, LOW], self.fields[:, HIGH] = -np.inf, np.inf
        return self._replace(bounded=False)

    @property
    def value(self) -> Float64:
        return np.asarray(self.scale * self.fields[:, TOP] + self.fields[:, VALUE])

    @property
    def spans(self) -> Float64:
        """[B] the width of the interval in nats."""
        return np.asarray(self.fields[:, HIGH] - self.fields[:, LOW])

    def rounded(self) -> LogZ32:
        """Round to float32, bounds outward."""
        rounded = np.empty((3, len(self.fields)), np.float32)
        round_log_z(self.fields, self.scale, rounded)
        low, high = rounded[1:] if self.bounded else (None, None)
        error = None if self.error is None else self.error.astype(np.float32)
        return LogZ32(rounded[0], low, high, error)

    def raised(self, logits: Float64, ids: Int32) -> Self:
        """Raise log Z in place to at least the log-sum-exp of these distinct ids, [B, M]."""
        raise_log_z(logits, ids, self.fields, self.scale)
        return self

    def log_probs(self, logits: Float64, ids: Int32) -> tuple[Float32, Bool]:
        log_probs, proven = np.empty(ids.shape, np.float32), np.empty(len(ids), np.bool_)
        round_log_probs(logits, ids, self.fields, self.scale, log_probs, proven)
        return log_probs, proven


class Query(NamedTuple):
    """Rows of hidden_states with the edits and the scale that define their distributions."""

    index: Index  # type: ignore[assignment]  # hides tuple.index
    head: Head  # answers, under the edits' mask if there is one
    hidden_states: Float32  # [B, D], B >= 1
    edits: Edits | None = None
    k: int = 1  # ids per row
    scale: float = 1.0  # 1 / temperature
    width: float = inf  # most nats that log Z's interval may span

    def rows(self, rows: Int64) -> Self:
        hidden_states = self.hidden_states[rows]
        if self.edits is None:
            return self._replace(hidden_states=hidden_states)
        other = self._replace(hidden_states=hidden_states, edits=self.edits.rows(rows))
        return other.by(self.head)

    def by(self, head: Head) -> Self:
        return self._replace(head=self.masked(head))

    @property
    def mask(self) -> Int32 | None:
        return None if self.edits is None else self.edits.mask

    def masked(self, head: Head) -> Head:
        return head if self.mask is None else head.masked(self.mask)

    @property
    def plain(self) -> bool:
        """True if edits replace no logit; a mask may forbid ids."""
        return self.edits is None or self.edits.plain

    @property
    def descriptor(self) -> Int64:
        descriptor = self.index.softmax.descriptor
        return descriptor if self.mask is None else masked_by(descriptor, self.mask)

    def listed(self) -> ListedLogits:
        """Return the logits that the head scans, with all edits applied."""
        candidates = self.head.candidates(self.hidden_states, self.k)
        return edit_candidates(candidates, self.edits, self.index.vocab_size)


class Normalizer(ABC):
    """A method for log Z. Stateless and thread-safe."""

    name: ClassVar[str]
    reads: ClassVar[str] = ""  # head that it needs for a pass over all V; "" for the answering one
    has_bounds: ClassVar[bool] = False  # it proves an interval of log Z

    @abstractmethod
    def log_z(self, query: Query) -> LogZ:
        """Return log Z of each row; InvalidRequest if the index lacks the head that it needs."""

    def token_logits(self, query: Query, token_ids: Int32) -> tuple[LogZ, Float64]:
        """Return log Z and the logits [B, T] of `token_ids`, -inf for p = 0."""
        logits = token_logits(query.index.softmax, query.hidden_states, token_ids, query.edits)
        return self.log_z(query), logits

    def source(self, query: Query) -> Head:
        """Return the index's head `reads`, under the mask; InvalidRequest if it is missing."""
        if self.reads not in query.index.heads:
            heads = ", ".join(query.index.heads)
            allowed = f"one that needs no head {self.reads!r}: the index has {heads}"
            raise InvalidRequest("normalizer", self.name, allowed)
        return query.masked(query.index.head(self.reads))


class _Candidates(Normalizer):
    """The log-sum-exp over the S scanned rows, a lower bound; other ids have p = 0."""

    name = "candidates"

    def log_z(self, query: Query) -> LogZ:
        listed = query.listed()
        return _log_sum_exp(listed.offsets, listed.logits, query.scale).unbounded()

    def token_logits(self, query: Query, token_ids: Int32) -> tuple[LogZ, Float64]:
        softmax, vocab_size = query.index.softmax, query.index.vocab_size
        logits = token_logits(softmax, query.hidden_states, token_ids, query.edits)
        listed = query.listed()
        keys = np.arange(len(token_ids))[:, None] * vocab_size + token_ids
        inside = among(keys, np.sort(keys_of(listed.offsets, listed.ids, vocab_size)))
        log_z = _log_sum_exp(listed.offsets, listed.logits, query.scale).unbounded()
        return log_z, np.where(inside, logits, -np.inf)


class _Approximate(Normalizer):
    """The answering head's own estimate if it has one, else the sum over all V."""

    name = "approximate"

    def log_z(self, query: Query) -> LogZ:
        if not query.plain:
            return quick_log_z(query)
        return best_with_log_z(query, estimating(query))[1]


class _LowRank(Normalizer):
    """The log-sum-exp over exact logits of scanned rows and SVD previews of the others; O(V R).

    Chen, Si, Kumar, Li, Hsieh 2019, Learning to Screen, section 7.3. Previews use all R stored
    directions, unless the head `svd` itself answers: then they have its width.
    """

    name, reads = "lowrank", "svd"

    def log_z(self, query: Query) -> LogZ:
        return self.token_logits(query, np.empty((len(query.hidden_states), 0), np.int32))[0]

    def token_logits(self, query: Query, token_ids: Int32) -> tuple[LogZ, Float64]:
        fields, chosen = [], []
        for rows, logits in self._slices(query):
            offsets = np.arange(len(logits) + 1) * query.index.vocab_size
            values = logits.ravel().astype(np.float64)
            fields.append(_log_sum_exp(offsets, values, query.scale).fields)
            chosen.append(np.take_along_axis(logits, token_ids[rows], axis=1))
        log_z = LogZ(np.concatenate(fields), query.scale).unbounded()
        return log_z, np.concatenate(chosen).astype(np.float64)

    def _slices(self, query: Query) -> Iterator[tuple[slice, Float32]]:
        head = source = query.head
        if head.name != self.reads:
            most = SvdHead.knob_table["width"].high
            source = self.source(query._replace(edits=None)).with_knobs(width=most)
        previews = cast(SvdHead, source)
        step = max(1, LOGITS_AT_ONCE // query.index.vocab_size)
        for start in range(0, len(query.hidden_states), step):
            rows = slice(start, min(start + step, len(query.hidden_states)))
            logits = previews.scores(query.hidden_states[rows])
            scanned = head.candidates(query.hidden_states[rows], query.k)
            owners = np.repeat(np.arange(len(logits)), np.diff(scanned.offsets))
            logits[owners, scanned.ids] = scanned.logits
            if query.edits is not None:
                query.edits.rows(np.arange(rows.start, rows.stop)).apply_to_all(logits)
            yield rows, logits


class _Sampled(Normalizer):
    """An estimate from the S rows that the head scans and l = 10 V / S sampled other ids.

    Levy, Chen, Ermon 2018, LSH Softmax, equation 4. A row's hidden state seeds its sample, so that
    it does not depend on the batch.
    """

    name = "sampled"

    def log_z(self, query: Query) -> LogZ:
        vocab_size, hidden_states = query.index.vocab_size, query.hidden_states
        if query.mask is not None:
            return quick_log_z(query).unbounded()  # few sampled ids would be allowed ones
        if query.head.max_error < 1.0:  # such a head scans few rows unless k is large
            many = round(SAMPLED_SHARE * vocab_size**0.5)
            query = query._replace(k=min(vocab_size, max(query.k, many)))
        listed, log_z = query.listed(), np.empty((len(hidden_states), 2), np.float32)
        known = answerable(listed.offsets, listed.logits)
        sizes = np.ceil(SAMPLED_SHARE * vocab_size / np.maximum(known, 1))
        sizes = np.minimum(sizes, vocab_size).astype(np.int64)
        if query.edits is not None and query.edits.allow_list:
            sizes[:] = 0  # no other id is allowed
        address = query.index.softmax.address
        sampled_log_z(
            address, hidden_states, _seeds(hidden_states), query.scale, *listed, sizes, log_z
        )
        value, error = log_z.T.astype(np.float64)
        return LogZ.estimate(value, query.scale, error)


class _Sketch(Normalizer):
    name, reads, has_bounds = "sketch", "sketch", True

    def log_z(self, query: Query) -> LogZ:
        source, edits = self.source(query), query.edits
        if edits is not None and edits.allow_list:  # all remaining logits are known
            return _log_sum_exp(edits.offsets, edits.values, query.scale)
        fields = cast(SketchHead, source).log_z(
            query.hidden_states, query.scale, edits, query.width
        )
        return narrowed(LogZ(fields, query.scale), query)


class _Full(Normalizer):
    """The full softmax's log Z: O(V D) a row."""

    name, reads, has_bounds = "full", "full", True

    def log_z(self, query: Query) -> LogZ:
        full, edits = cast(FullHead, self.source(query)), query.edits
        if edits is not None and edits.allow_list:  # all remaining logits are known
            return _log_sum_exp(edits.offsets, edits.values, query.scale)
        fields = full.log_z(query.hidden_states, query.scale, edits)
        return LogZ(fields, query.scale)


def narrowed(log_z: LogZ, query: Query) -> LogZ:
    """Compute log Z exactly, in place, for rows with an interval wider than `query.width`."""
    if query.width == inf:
        return log_z
    wide = np.flatnonzero(log_z.spans > query.width)
    if wide.size:
        log_z.fields[wide] = FULL.log_z(query.rows(wide)).fields
    return log_z


def quick_log_z(query: Query) -> LogZ:
    """Return log Z from one pass with mostly float32 dot products; InvalidRequest without `full`.

    Its interval is wider than FULL's.
    """
    full, edits = cast(FullHead, FULL.source(query)), query.edits
    log_z = full.quick_log_z(query.hidden_states, query.scale, edits)
    return LogZ(log_z, query.scale)


def estimating(query: Query) -> Head:
    estimates = query.head.estimates_at(query.scale, query.k)
    return query.head if estimates else FULL.source(query)


def best_with_log_z(query: Query, head: Head) -> tuple[BestLogits, LogZ]:
    """Return the k best of all ids and log Z by one call of `head`, which ignores edits."""
    best = head.best_with_log_z(query.hidden_states, query.k, query.scale)
    return found_by(head, best, query.scale, head.estimates_at(query.scale, query.k))


def found_by(
    head: Head, best: BestWithLogZ, scale: float, estimated: bool
) -> tuple[BestLogits, LogZ]:
    provenance = Provenance(*best[4:], head.max_error)
    log_z = LogZ(best.log_z, scale, not estimated, best.errors if estimated else None)
    return BestLogits(best.ids, best.logits, provenance), log_z


def _log_sum_exp(offsets: Int64, logits: Float64, scale: float) -> LogZ:
    fields = np.empty((len(offsets) - 1, FIELDS))
    csr_log_z(offsets, np.ascontiguousarray(logits), scale, fields)
    return LogZ(fields, scale)


def _seeds(hidden_states: Float32) -> UInt64:
    bits = hidden_states.view(np.uint32).astype(np.uint64)
    odd = np.arange(1, 2 * hidden_states.shape[1], 2, dtype=np.uint64) * np.uint64(
        0x9E3779B97F4A7C15
    )
    return np.asarray((bits * (odd | np.uint64(1))).sum(axis=1, dtype=np.uint64))


CANDIDATES, APPROXIMATE, SAMPLED = _Candidates(), _Approximate(), _Sampled()
SKETCH, FULL = _Sketch(), _Full()
NORMALIZERS: Mapping[str, Normalizer] = {
    each.name: each for each in (CANDIDATES, _LowRank(), SAMPLED, SKETCH, FULL, APPROXIMATE)
}


def find_normalizer(name: str) -> Normalizer:
    try:
        return NORMALIZERS[name]
    except KeyError:
        raise InvalidRequest("normalizer", name, ", ".join(NORMALIZERS)) from None


def stepping_normalizer(head: Head) -> str:
    """Return the default normalizer of `beam_step`.

    A head that only estimates its ids may also estimate log Z; any other needs an exact one, as a
    wide interval seldom decides the order of the beams.
    """
    return (APPROXIMATE if head.estimates_log_z and head.max_error == 1.0 else FULL).name


def default_normalizer(index: Index) -> str:
    """Return the default normalizer of `score`."""
    return (SKETCH if SKETCH.name in index.heads else FULL).name
