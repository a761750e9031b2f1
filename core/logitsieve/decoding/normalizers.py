"""Normalizers: log Z per row, which turns exact logits into log-probabilities.

log Z is the logarithm of the sum of e^{scale x} over all logits x, or over what edits leave of
them; `scale` is 1 / temperature. NORMALIZERS has them by their names in requests, manifests and
metrics: the only list of them.

Shape letters: B batch rows, D hidden size, V vocabulary, T targets, S rows of W that a head scans.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from math import sqrt
from typing import ClassVar, NamedTuple, cast

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64, UInt64
from logitsieve.decoding.logit_edits import (
    Edits,
    ListedLogits,
    among,
    edit_candidates,
    keys_of,
    target_logits,
)
from logitsieve.heads._base.head import Head
from logitsieve.heads.certified import CertifiedHead
from logitsieve.heads.exact import ExactHead
from logitsieve.heads.svd import SvdHead
from logitsieve.index import Index
from logitsieve.kernels.sampling.sampled_tail import sampled_log_z
from logitsieve.kernels.topk.csr import csr_log_sum_exp

# Logits of all V at a time: 16 MiB of float32, whatever the number of rows.
LOGITS_AT_ONCE = 1 << 22
SAMPLED_SHARE = 10  # candidates times sampled ids, over V: k = 10 sqrt(V), l = sqrt(V) are a pair
SAMPLED_ROOTS = 20  # logits beside the head's own, in square roots of V: its estimated cost


class Query(NamedTuple):
    """Rows of hidden, and the distribution over the vocabulary that each stands for."""

    index: Index  # type: ignore[assignment]  # nothing looks for a value in this tuple
    head: Head  # the answering one
    hidden: Float32  # [B, D], B >= 1
    edits: Edits | None = None
    k: int = 1  # ids that the head answers for each row
    scale: float = 1.0  # 1 / temperature

    def rows(self, rows: Int64) -> Query:
        """The same query for the given rows, in that order."""
        edits = None if self.edits is None else self.edits.rows(rows)
        return self._replace(hidden=self.hidden[rows], edits=edits)

    def listed(self) -> ListedLogits:
        """The logits that the head scans, after edits, and all that are edited."""
        candidates = self.head.candidates(self.hidden, self.k)
        return edit_candidates(candidates, self.edits, self.index.vocab_size)

    def draw(
        self, head: Head, samples: int, seeds: UInt64, step: int, **options: bool
    ) -> tuple[Int32, Float64, Int32]:
        """Draws by the exact or the certified head: ids [B, N], log Z and the rows scanned [B]."""
        edits = self.edits and self.edits[:3]
        source = cast(CertifiedHead, head)  # the exact head has no options
        return source.draw(self.hidden, samples, seeds, step, self.scale, edits, **options)

    def drawn_log_z(self, head: Head, **options: bool) -> Float64:
        """The log Z of `draw`, without a draw."""
        return self.draw(head, 0, np.zeros(len(self.hidden), np.uint64), 0, **options)[1]


class LogZ(NamedTuple):
    """log of the sum of exp(scale x logit), for each row."""

    value: Float32 | None  # [B]
    low: Float32 | None = None  # [B] it is proven to lie between these
    high: Float32 | None = None  # [B]
    error: Float32 | None = None  # [B] the standard error of an estimate


class Prices(NamedTuple):
    """Microseconds a row: what the cost of a log Z is estimated from."""

    head_us: float  # the answering head's top k
    us_per_logit: float
    vocab_size: int
    pass_us: Callable[[str], float]  # name of a head -> the time of a pass over all V as it makes


class Normalizer(ABC):
    """A way to find log Z. Stateless; any number of threads may call it."""

    name: ClassVar[str]
    code: ClassVar[int]  # in decoder.proto's enum Normalizer
    reads: ClassVar[str] = ""  # the head that makes a pass over all V; "": the answering one scans
    is_exact: ClassVar[bool] = False  # the value is the full softmax's, computed
    has_bounds: ClassVar[bool] = False  # log Z is proven to lie between `low` and `high`

    @abstractmethod
    def log_z(self, query: Query) -> LogZ:
        """log Z over all V, or what the edits leave; InvalidRequest if the index lacks a head."""

    def cost(self, prices: Prices) -> float:
        """Microseconds that it takes a row, beside the top k."""
        return prices.pass_us(self.reads) if self.reads else prices.head_us

    def target_logits(self, query: Query, targets: Int32) -> tuple[LogZ, Float32 | Float64]:
        """log Z, and the logits [B, T] of `targets` that belong to it; -inf for those of p = 0."""
        logits = target_logits(query.index.softmax, query.hidden, targets, query.edits)
        return self.log_z(query), logits

    def proven(self, log_z: LogZ, rows: int) -> Bool:
        """[B] whether `log_z` is the full softmax's, computed or proven."""
        if log_z.low is None or log_z.high is None:
            return np.full(rows, self.is_exact)
        return np.asarray(log_z.low == log_z.high)

    def source(self, index: Index) -> Head:
        """The head that it `reads`; InvalidRequest if the index has none."""
        if self.reads not in index.heads:
            heads = ", ".join(index.heads)
            allowed = f"one that needs no head {self.reads!r}: the index has {heads}"
            raise InvalidRequest("normalizer", self.name, allowed)
        return index.head(self.reads)


class _Candidates(Normalizer):
    """log sum exp over the S rows that the head scanned: the softmax of the papers' beam search.

    A token outside has p = 0, and log Z is a lower bound of the full one. O(S) a row beside the
    scan.
    """

    name, code = "candidates", 1

    def log_z(self, query: Query) -> LogZ:
        listed = query.listed()
        return LogZ(_log_sum_exp(listed.offsets, listed.logits, query.scale))

    def target_logits(self, query: Query, targets: Int32) -> tuple[LogZ, Float32 | Float64]:
        softmax, vocab_size = query.index.softmax, query.index.vocab_size
        logits = target_logits(softmax, query.hidden, targets, query.edits)
        listed = query.listed()
        keys = np.arange(len(targets))[:, None] * vocab_size + targets
        inside = among(keys, np.sort(keys_of(listed.offsets, listed.ids, vocab_size)))
        log_z = LogZ(_log_sum_exp(listed.offsets, listed.logits, 1.0))
        return log_z, np.where(inside, logits, -np.inf)


class _LowRank(Normalizer):
    """log sum exp over exact logits of scanned rows and previews of all others; O(V R) a row.

    Chen, Si, Kumar, Li, Hsieh 2019, Learning to Screen, section 7.3. R is the width of the index's
    `svd` head, or of the head that answers, if it is one.
    """

    name, code, reads = "lowrank", 2, "svd"

    def log_z(self, query: Query) -> LogZ:
        return _log_z_all(self._slices(query), query.scale)

    def target_logits(self, query: Query, targets: Int32) -> tuple[LogZ, Float32 | Float64]:
        chosen: list[Float32] = []

        def choosing() -> Iterator[tuple[slice, Float32]]:
            for rows, logits in self._slices(query):
                chosen.append(np.take_along_axis(logits, targets[rows], axis=1))
                yield rows, logits

        return _log_z_all(choosing(), 1.0), np.concatenate(chosen)

    def _slices(self, query: Query) -> Iterator[tuple[slice, Float32]]:
        head = query.head
        source = cast(SvdHead, head if head.name == self.reads else self.source(query.index))

        def all_logits(hidden: Float32) -> Float32:
            logits, scanned = source.scores(hidden), head.candidates(hidden, query.k)
            rows = np.repeat(np.arange(len(hidden)), np.diff(scanned.offsets))
            logits[rows, scanned.ids] = scanned.logits
            return logits

        return _edited_slices(query, all_logits)


class _Sampled(Normalizer):
    """An estimate from the S rows that the head scans and l ids sampled from all others.

    Levy, Chan, Ermon 2018, LSH Softmax, equation 4; l = 10 V / S. The sample depends on the row of
    hidden alone; `error` is the standard error that it shows, of log Z.
    """

    name, code = "sampled", 3

    def log_z(self, query: Query) -> LogZ:
        vocab_size, hidden = query.index.vocab_size, query.hidden
        if query.head.proves:  # it looks at few rows unless k is large
            many = round(SAMPLED_SHARE * vocab_size**0.5)
            query = query._replace(k=min(vocab_size, max(query.k, many)))
        listed, log_z = query.listed(), np.empty((len(hidden), 2), np.float32)
        sizes = np.ceil(SAMPLED_SHARE * vocab_size / np.maximum(listed.answerable(), 1))
        sizes = np.minimum(sizes, vocab_size).astype(np.int64)
        if query.edits is not None:
            sizes[query.edits.allow_list] = 0  # nothing else may be answered
        address = query.index.softmax.descriptor.ctypes.data
        sampled_log_z(address, hidden, _seeds(hidden), query.scale, *listed, sizes, log_z)
        return LogZ(log_z[:, 0].copy(), error=log_z[:, 1].copy())

    def cost(self, prices: Prices) -> float:
        sampled = SAMPLED_ROOTS * sqrt(prices.vocab_size) * prices.us_per_logit
        return super().cost(prices) + sampled


class _Certified(Normalizer):
    """An estimate by the sketch's fine codes, and the interval that is proven to hold log Z.

    `low` and `high` are rounded outward; they are equal where all that remains is computed.
    """

    name, code, reads, has_bounds = "certified", 4, "certified", True

    def log_z(self, query: Query) -> LogZ:
        source, edits = self.source(query.index), query.edits
        if edits is None or not edits.allow_list.any():
            return interval(query.drawn_log_z(source, fine=True))
        log_z = np.empty((3, len(query.hidden)), np.float32)
        # Rows with an allow list are computed whole: those need no proof.
        for rows, normalizer in ((edits.allow_list, CANDIDATES), (~edits.allow_list, self)):
            places = np.flatnonzero(rows)
            if places.size:
                part = normalizer.log_z(query.rows(places))
                log_z[:, places] = part.value if part.low is None else part[:3]
        return LogZ(*log_z)


class _Exact(Normalizer):
    """The full softmax's log Z, whatever head answers: O(V D) a row."""

    name, code, reads, is_exact = "exact", 5, "exact", True

    def log_z(self, query: Query) -> LogZ:
        exact = cast(ExactHead, self.source(query.index))
        if query.edits is None:
            return LogZ(exact.log_z(query.hidden, query.scale))
        slices = _edited_slices(query, lambda hidden: exact.candidates(hidden, 1).logits)
        return _log_z_all(slices, query.scale)


def interval(log_z: Float64) -> LogZ:
    """float32 of [B, 3]: an estimate, and what encloses the interval it is proven to lie in."""
    infinite = np.float32(np.inf)
    with np.errstate(over="ignore"):  # what is beyond float32 lies between its end and infinity
        value, low, high = log_z.astype(np.float32).T
        low = np.where(low > log_z[:, 1], np.nextafter(low, -infinite), low)
        high = np.where(high < log_z[:, 2], np.nextafter(high, infinite), high)
    return LogZ(np.clip(value, low, high), low, high)


def _edited_slices(
    query: Query, logits_of: Callable[[Float32], Float32]
) -> Iterator[tuple[slice, Float32]]:
    """All V logits of some rows at a time, after edits: no more than LOGITS_AT_ONCE, or one row."""
    vocab_size, count = query.index.vocab_size, len(query.hidden)
    step = max(1, LOGITS_AT_ONCE // vocab_size)
    for start in range(0, count, step):
        rows = slice(start, min(start + step, count))
        logits = logits_of(query.hidden[rows]).reshape(-1, vocab_size)
        if query.edits is not None:
            query.edits.rows(np.arange(rows.start, rows.stop)).apply_to_all(logits)
        yield rows, logits


def _log_z_all(slices: Iterator[tuple[slice, Float32]], scale: float) -> LogZ:
    sums = []
    for _, logits in slices:
        rows, vocab_size = logits.shape
        sums.append(_log_sum_exp(np.arange(rows + 1) * vocab_size, logits.ravel(), scale))
    return LogZ(np.concatenate(sums))


def _log_sum_exp(offsets: Int64, logits: Float32 | Float64, scale: float) -> Float32:
    """log sum exp of CSR rows."""
    scaled = logits if scale == 1.0 else logits * scale
    log_z = np.empty(len(offsets) - 1, np.float32)
    csr_log_sum_exp(offsets, np.ascontiguousarray(scaled, np.float32), log_z)
    return log_z


def _seeds(hidden: Float32) -> UInt64:
    """[B] seeds that depend on all bits of a row."""
    bits = hidden.view(np.uint32).astype(np.uint64)
    odd = np.arange(1, 2 * hidden.shape[1], 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray((bits * (odd | np.uint64(1))).sum(axis=1, dtype=np.uint64))


CANDIDATES, SAMPLED, CERTIFIED, EXACT = _Candidates(), _Sampled(), _Certified(), _Exact()
NORMALIZERS: Mapping[str, Normalizer] = {
    each.name: each for each in (CANDIDATES, _LowRank(), SAMPLED, CERTIFIED, EXACT)
}
# That of `beam_step`: the order of beams is seldom decided by an interval.
STEPPING = EXACT.name


def find_normalizer(name: str) -> Normalizer:
    """The normalizer called `name`; InvalidRequest lists all of them."""
    try:
        return NORMALIZERS[name]
    except KeyError:
        raise InvalidRequest("normalizer", name, ", ".join(NORMALIZERS)) from None


def default_normalizer(index: Index) -> str:
    """Name of the normalizer of `score` where a request names none."""
    return (CERTIFIED if CERTIFIED.name in index.heads else EXACT).name
