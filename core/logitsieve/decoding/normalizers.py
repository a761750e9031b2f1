"""log Z per row: what turns exact logits into log-probabilities.

Each is the logarithm of the sum of e^{scale x} over all logits x, or over what edits leave of them;
`scale` is 1 / temperature.

Shape letters: B batch rows, D hidden size, V vocabulary, S scanned rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Float64, Int32, Int64, UInt64
from logitsieve.decoding.known import known
from logitsieve.decoding.logit_edits import Edits
from logitsieve.heads._base.head import Head
from logitsieve.heads.certified import CertifiedHead
from logitsieve.heads.exact import ExactHead
from logitsieve.heads.svd import SvdHead
from logitsieve.index import Index
from logitsieve.kernels.sampling.sampled_tail import sampled_log_z
from logitsieve.kernels.topk.csr import csr_log_sum_exp

# Logits of all V at a time: 16 MiB of float32, whatever the number of rows asked for.
LOGITS_AT_ONCE = 1 << 22
SAMPLED_SHARE = 10  # candidates times sampled ids, over V: k = 10 sqrt(V), l = sqrt(V) are a pair


class LogZ(NamedTuple):
    """log of the sum of exp(scale x logit), for each row."""

    value: Float32 | None  # [B]
    low: Float32 | None = None  # [B] it is proven to lie between these
    high: Float32 | None = None  # [B]
    error: Float32 | None = None  # [B] the standard error of an estimate


# (index, head, hidden [B, D], k, edits or None, scale) -> LogZ of all V, or of what edits leave
Normalizer = Callable[[Index, Head, Float32, int, Edits | None, float], LogZ]


def over_candidates(
    index: Index, head: Head, hidden: Float32, k: int, edits: Edits | None, scale: float
) -> LogZ:
    """log sum exp over the S rows that `head` scanned: the softmax of the papers' beam search.

    A token outside has p = 0, and log Z is a lower bound of the full one.
    """
    found = known(head.candidates(hidden, k), edits, index.vocab_size)
    return LogZ(_log_sum_exp(found.offsets, found.logits, scale))


def over_vocabulary(
    index: Index, head: Head, hidden: Float32, k: int, edits: Edits | None, scale: float
) -> LogZ:
    """log sum exp over all V logits, O(B V D)."""
    exact = cast(ExactHead, index.head("exact"))
    if edits is None:
        return LogZ(exact.log_z(hidden, scale))

    parts = _edited(index, hidden, edits, lambda rows: exact.candidates(rows, 1).logits)
    return LogZ(np.concatenate([_of_rows(logits, scale) for _, logits in parts]))


def with_low_rank(
    index: Index, head: Head, hidden: Float32, k: int, edits: Edits | None, scale: float
) -> LogZ:
    """log sum exp over all V logits, those that `head` does not scan by their preview in rank R.

    Chen, Si, Kumar, Li, Hsieh 2019, Learning to Screen, section 7.3. R is the width of the index's
    `svd` head, or of the head that answers, if it is one.
    """

    parts = _edited(index, hidden, edits, lambda rows: _low_rank(index, head, rows, k))
    return LogZ(np.concatenate([_of_rows(logits, scale) for _, logits in parts]))


def low_rank_scores(
    index: Index, head: Head, hidden: Float32, targets: Int32, edits: Edits | None
) -> tuple[LogZ, Float32]:
    """log Z by `with_low_rank`, and the logits [B, T] of `targets` that go with it."""
    log_z, found = [], []
    for rows, logits in _edited(index, hidden, edits, lambda part: _low_rank(index, head, part, 1)):
        log_z.append(_of_rows(logits, 1.0))
        found.append(np.take_along_axis(logits, targets[rows], axis=1))
    return LogZ(np.concatenate(log_z)), np.concatenate(found)


def _low_rank(index: Index, head: Head, hidden: Float32, k: int) -> Float32:
    """[B, V] exact logits of what `head` scans, previews of rank R of all others."""
    source = cast(SvdHead, head if head.name == "svd" else _need(index, "svd", "lowrank"))
    logits, found = source.scores(hidden), head.candidates(hidden, k)
    rows = np.repeat(np.arange(len(hidden)), np.diff(found.offsets))
    logits[rows, found.ids] = found.logits
    return logits


def with_sampled_tail(
    index: Index, head: Head, hidden: Float32, k: int, edits: Edits | None, scale: float
) -> LogZ:
    """An estimate from the S rows that `head` scans and l ids sampled from all others.

    Levy, Chan, Ermon 2018, LSH Softmax, equation 4. l = 10 V / S. What is sampled depends on the
    row of hidden alone; `error` is the standard error that the sample shows, of log Z.
    """
    if head.proves:  # it looks at few rows unless it is asked for many
        k = min(index.vocab_size, max(k, round(SAMPLED_SHARE * index.vocab_size**0.5)))
    found = known(head.candidates(hidden, k), edits, index.vocab_size)
    rows, record = len(hidden), index.softmax.record
    log_z = np.empty((rows, 2), np.float32)
    sizes = np.ceil(SAMPLED_SHARE * index.vocab_size / np.maximum(found.open(), 1))
    sizes = np.minimum(sizes, index.vocab_size).astype(np.int64)
    if edits is not None:
        sizes[edits.only] = 0  # nothing else may be answered
    sampled_log_z(record.ctypes.data, hidden, _seeds(hidden), scale, *found, sizes, log_z)
    return LogZ(log_z[:, 0].copy(), error=log_z[:, 1].copy())


def with_proof(
    index: Index, head: Head, hidden: Float32, k: int, edits: Edits | None, scale: float
) -> LogZ:
    """An estimate by the sketch's fine codes, and the interval that is proven to hold log Z.

    Rows with much of the weight are computed exactly. Needs the index's `certified` head.
    """
    source = cast(CertifiedHead, _need(index, "certified", "certified"))
    if edits is not None and edits.only.any():
        return _mixed(index, head, hidden, k, edits, scale)
    seeds = np.zeros(len(hidden), np.uint64)
    log_z = source.draw(hidden, 0, seeds, 0, scale, edits and edits[:3], fine=True)[1]
    return interval(log_z)


def interval(log_z: Float64) -> LogZ:
    """float32 of [B, 3]: an estimate, and what encloses the interval it is proven to lie in."""
    infinite = np.float32(np.inf)
    with np.errstate(over="ignore"):  # what is beyond float32 lies between its end and infinity
        value, low, high = log_z.astype(np.float32).T
        low = np.where(low > log_z[:, 1], np.nextafter(low, -infinite), low)
        high = np.where(high < log_z[:, 2], np.nextafter(high, infinite), high)
    return LogZ(np.clip(value, low, high), low, high)


def _mixed(index: Index, head: Head, hidden: Float32, k: int, edits: Edits, scale: float) -> LogZ:
    """`with_proof` where rows name all that may be answered: those need no proof."""
    found = np.empty((3, len(hidden)), np.float32)
    for rows, normalize in ((edits.only, over_candidates), (~edits.only, with_proof)):
        places = np.flatnonzero(rows)
        if places.size:
            part = edits.rows(places)
            got = normalize(index, head, hidden[places], k, part, scale)
            found[:, places] = (got.value, *(got[1:3] if got.low is not None else (got.value,) * 2))
    return LogZ(*found)


NORMALIZERS: dict[str, Normalizer] = {
    "candidates": over_candidates,
    "lowrank": with_low_rank,
    "sampled": with_sampled_tail,
    "certified": with_proof,
    "exact": over_vocabulary,
}


def find_normalizer(name: str) -> Normalizer:
    """The normalizer called `name`; InvalidRequest names those that are built."""
    try:
        return NORMALIZERS[name]
    except KeyError:
        raise InvalidRequest("normalizer", name, ", ".join(NORMALIZERS)) from None


# What `beam_step` uses: the order of beams is seldom decided by an interval.
STEPPING = "exact"


def default_normalizer(index: Index) -> str:
    """What `score` uses where a request names none."""
    return "certified" if "certified" in index.heads else "exact"


def _need(index: Index, head: str, normalizer: str) -> Head:
    if head not in index.heads:
        allowed = f"one that needs no head {head!r}: the index has {', '.join(index.heads)}"
        raise InvalidRequest("normalizer", normalizer, allowed)
    return index.head(head)


def _edited(
    index: Index,
    hidden: Float32,
    edits: Edits | None,
    logits_of: Callable[[Float32], Float32],
) -> Iterator[tuple[slice, Float32]]:
    """All V logits of some rows at a time, after edits: no more than LOGITS_AT_ONCE, or one row."""
    step = max(1, LOGITS_AT_ONCE // index.vocab_size)
    for start in range(0, len(hidden), step):
        rows = slice(start, min(start + step, len(hidden)))
        logits = logits_of(hidden[rows]).reshape(-1, index.vocab_size)
        if edits is not None:
            _edit(logits, edits.rows(np.arange(rows.start, rows.stop)))
        yield rows, logits


def _of_rows(logits: Float32, scale: float) -> Float32:
    """log sum exp of each row of [B, V]."""
    rows, vocab_size = logits.shape
    return _log_sum_exp(np.arange(rows + 1) * vocab_size, logits.ravel(), scale)


def _edit(logits: Float32, edits: Edits) -> None:
    """Replace, in place, what edits name and forbid."""
    logits[edits.only] = -np.inf
    rows = np.repeat(np.arange(len(logits)), np.diff(edits.offsets))
    logits[rows, edits.ids] = edits.values


def _log_sum_exp(offsets: Int64, logits: Float32 | Float64, scale: float) -> Float32:
    scaled = logits if scale == 1.0 else logits * scale
    log_z = np.empty(len(offsets) - 1, np.float32)
    csr_log_sum_exp(offsets, np.ascontiguousarray(scaled, np.float32), log_z)
    return log_z


def _seeds(hidden: Float32) -> UInt64:
    """[B] seeds that depend on all bits of a row."""
    bits = hidden.view(np.uint32).astype(np.uint64)
    odd = np.arange(1, 2 * hidden.shape[1], 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray((bits * (odd | np.uint64(1))).sum(axis=1, dtype=np.uint64))
