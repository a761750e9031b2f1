"""Turn constraints into edits of logits, and find the best ids under them.

Answers are as exact as the head's own: it is asked for a few more than k ids, and again for twice
as many while fewer than k of them are unedited, row by row, so that batches do not matter.
"""

from typing import NamedTuple, Self

import numpy as np

from logitsieve.api.constraints import SETS, Constraints, IdLists, IdSets
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.mask import bits_of, check_some_bits, count_bits, unpacked
from logitsieve.api.results import (
    Candidates,
    Float32,
    Float64,
    Int32,
    Int64,
    Provenance,
    offsets_of,
)
from logitsieve.heads._base.edits import Edits, among, keys_of, no_edits
from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.kernel_head import Head
from logitsieve.kernels.topk.merge import merge_edited

LARGEST = float(np.finfo(np.float32).max)  # edited logits are clipped to it
FEW_ALLOWED = 64  # a mask that allows at most V / 64 ids is handled as a list of ids


class ListedLogits(NamedTuple):
    """Row r's ids are ids[offsets[r]:offsets[r+1]]."""

    offsets: Int64  # [B+1]
    ids: Int32  # distinct within a row
    logits: Float64  # -inf for forbidden ids


def edits_of(
    softmax: Softmax, constraints: Constraints, hidden_states: Float32, rows: Int64 | None = None
) -> Edits:
    """Return the edits for hidden_states [B, D], or for `rows` of them; or InvalidRequest."""
    sets, size = constraints.for_rows(len(hidden_states)), softmax.vocab_size
    if rows is not None:
        sets, hidden_states = sets.take(rows), hidden_states[rows]
    mask = checked_mask(sets.mask, size)
    few = mask is not None and FEW_ALLOWED * count_bits(mask).max() <= size
    if mask is not None and not few and all(getattr(sets, name) is None for name in SETS):
        return no_edits(len(hidden_states))._replace(mask=mask)
    banned = _rising(keys_of_sets(sets.banned, size, "constraints.banned"))
    biased = keys_of_sets(sets.biased, size, "constraints.biased")
    repeated = _rising(keys_of_sets(sets.repeated, size, "constraints.repeated"))
    if sets.repetition_penalty == 1.0:
        repeated = repeated[:0]
    allowed = _rising(keys_of_sets(sets.allowed, size, "constraints.allowed"))
    allow_list = sets.allowed is not None
    if few and mask is not None and not allow_list:
        allow_list, allowed = True, np.flatnonzero(unpacked(mask, size))
    if allow_list:
        keys = allowed[~among(allowed, banned)]
    else:
        keys = _rising(np.concatenate([banned, biased, repeated]))
    ids, open_ = (keys % size).astype(np.int32), ~among(keys, banned)
    if mask is not None:
        open_ &= bits_of(mask, keys // size, ids)
    if allow_list:
        keys, ids, open_, mask = keys[open_], ids[open_], open_[open_], None
    offsets = np.searchsorted(keys, np.arange(len(hidden_states) + 1) * size)
    values = np.full(keys.size, -np.inf)
    values[open_] = _edited(softmax, sets, hidden_states, keys[open_], biased, repeated)
    return Edits(offsets, ids, values, allow_list, mask)


def checked_mask(mask: Int32 | None, vocab_size: int) -> Int32 | None:
    """Clear bits beyond V of a mask from `for_rows`; InvalidRequest for a wrong width."""
    if mask is None:
        return None
    words, last = -(-vocab_size // 32), vocab_size % 32
    if mask.shape[1] != words:
        raise InvalidRequest("constraints.mask", f"{mask.shape[1]} words", f"{words}, V / 32")
    if last and (mask[:, -1] >> last).any():
        mask = mask.copy()
        mask[:, -1] &= (1 << last) - 1
        check_some_bits(mask)
    return mask


def open_edits(softmax: Softmax, constraints: Constraints, hidden_states: Float32) -> Edits:
    """Return the edits; InvalidRequest also for a row that is left without ids."""
    edits = edits_of(softmax, constraints, hidden_states)
    remaining = edits.remaining(softmax.vocab_size)
    if not remaining.all():
        got = f"nothing left in row {np.argmin(remaining)}"
        raise InvalidRequest("constraints", got, "at least one id for each row")
    return edits


def token_logits(
    softmax: Softmax, hidden_states: Float32, token_ids: Int32, edits: Edits | None
) -> Float64:
    """Return the exact logits of `token_ids`, [B, T], after edits; -inf for forbidden ones."""
    offsets = np.arange(len(token_ids) + 1, dtype=np.int64) * token_ids.shape[1]
    logits = softmax.logits64(hidden_states, offsets, token_ids.ravel()).reshape(token_ids.shape)
    if edits is not None:
        edits.apply_to_ids(logits, token_ids, softmax.vocab_size)
    return logits


def edit_candidates(candidates: Candidates, edits: Edits | None, vocab_size: int) -> ListedLogits:
    """Apply edits to candidates, and add the edited ids that are not among them."""
    offsets, ids, logits = candidates.offsets, candidates.ids, candidates.logits
    if edits is None:
        return ListedLogits(offsets, ids, logits.astype(np.float64))
    if edits.mask is not None:
        kept = bits_of(edits.mask, np.repeat(np.arange(len(edits.mask)), np.diff(offsets)), ids)
        ends = np.concatenate([[0], np.cumsum(kept)])
        candidates = Candidates(ends[offsets], ids[kept], logits[kept], candidates.upper)
        offsets, ids, logits, _ = candidates
    keys, edited = (keys_of(each.offsets, each.ids, vocab_size) for each in (candidates, edits))
    remaining = ~among(keys, edited) & (not edits.allow_list)
    both = np.concatenate([keys[remaining], edited])
    values = np.concatenate([logits[remaining].astype(np.float64), edits.values])
    order = np.argsort(both)
    both = both[order]
    offsets = np.searchsorted(both, np.arange(len(offsets), dtype=np.int64) * vocab_size)
    return ListedLogits(offsets, (both % vocab_size).astype(np.int32), values[order])


def keys_of_sets(sets: IdLists | None, vocab_size: int, field: str) -> Int64:
    if sets is None:
        return np.empty(0, np.int64)
    assert isinstance(sets, IdSets), "for_rows makes IdSets"
    check_ids(sets.ids, vocab_size, field)
    return keys_of(sets.offsets, sets.ids, vocab_size)


def check_ids(ids: Int32, vocab_size: int, field: str) -> None:
    if ids.size and (largest := int(ids.max())) >= vocab_size:
        raise InvalidRequest(field, largest, f"ids from 0 to {vocab_size - 1}")


def _rising(keys: Int64) -> Int64:
    """Return the distinct keys, sorted: on nearly sorted keys this is faster than np.unique."""
    keys = np.sort(keys)
    return np.concatenate([keys[:1], keys[1:][keys[1:] != keys[:-1]]])


def _edited(
    softmax: Softmax,
    sets: Constraints,
    hidden_states: Float32,
    keys: Int64,
    biased: Int64,
    repeated: Int64,
) -> Float64:
    size = softmax.vocab_size
    offsets = np.searchsorted(keys, np.arange(len(hidden_states) + 1) * size)
    values = softmax.logits64(hidden_states, offsets, (keys % size).astype(np.int32))
    penalized, penalty = among(keys, repeated), sets.repetition_penalty
    old = values[penalized]
    values[penalized] = np.where(old > 0, old / penalty, old * penalty)
    if biased.size:
        places = np.searchsorted(keys, biased)
        named = among(biased, keys)
        values[places[named]] += np.asarray(sets.bias, np.float64)[named]
    return np.clip(values, -LARGEST, LARGEST)


HEADROOM = 8  # a head is first asked for this many ids beyond k, or as many as are edited if fewer


class BestLogits(NamedTuple):
    """The best ids of rows that may have fewer than K, with float64 logits."""

    ids: Int32  # [B, K] -1 beyond a row's end
    logits: Float64  # [B, K] -inf beyond a row's end
    provenance: Provenance  # edited ids count as scanned

    def rows(self, rows: Int64) -> Self:
        proven, scanned, fallback, max_error = self.provenance
        provenance = Provenance(proven[rows], scanned[rows], fallback[rows], max_error)
        return type(self)(self.ids[rows], self.logits[rows], provenance)


def wanted_of(edits: Edits, k: int, vocab_size: int) -> Int64:
    remaining = edits.remaining(vocab_size)
    row = int(np.argmin(remaining))
    if remaining[row] < k:
        allowed = f"at most {remaining[row]}, which the constraints leave in row {row}"
        raise InvalidRequest("k", k, allowed)
    return np.full(len(remaining), k, np.int64)


def best_edited(
    softmax: Softmax, head: Head, hidden_states: Float32, counts: Int64, edits: Edits
) -> BestLogits:
    """Return the counts[r] <= V best ids of row r of hidden_states [B, D] under `edits`."""
    rows, width = len(hidden_states), int(counts.max())
    if edits.plain:
        assert edits.mask is not None
        return best_unedited(softmax, head.masked(edits.mask), hidden_states, max(1, width))
    offsets, ids, provenance = _of_head(softmax, head, hidden_states, counts, edits)
    logits = softmax.logits64(hidden_states, offsets, ids)
    best_ids = np.empty((rows, width), np.int32)
    best_logits = np.empty((rows, width), np.float64)
    merge_edited(
        offsets, ids, logits, edits.offsets, edits.ids, edits.values, counts, best_ids, best_logits
    )
    return BestLogits(best_ids, best_logits, provenance)


def best_unedited(softmax: Softmax, head: Head, hidden_states: Float32, k: int) -> BestLogits:
    """Return the k best ids of hidden_states [B, D]; a mask of the head may leave fewer."""
    top = head.topk(hidden_states, k)
    offsets, ids = np.arange(len(hidden_states) + 1, dtype=np.int64) * k, np.maximum(top.ids, 0)
    logits = softmax.logits64(hidden_states, offsets, ids.ravel()).reshape(top.ids.shape)
    logits[top.ids < 0] = -np.inf
    return BestLogits(top.ids, logits, Provenance(*top[2:], head.max_error))


def _of_head(
    softmax: Softmax, head: Head, hidden_states: Float32, counts: Int64, edits: Edits
) -> tuple[Int64, Int32, Provenance]:
    rows, size = len(hidden_states), softmax.vocab_size
    named = np.diff(edits.offsets)
    lengths = np.minimum(counts, edits.unnamed(size)) * (not edits.allow_list)
    offsets, keys = offsets_of(lengths), keys_of(edits.offsets, edits.ids, size)
    ids, proven = np.empty(offsets[-1], np.int32), np.ones(rows, np.bool_)
    scanned, fallback = edits.answerable(), np.zeros(rows, np.bool_)
    # Rows that ask for equally many ids share a call. Rounding up to powers of two makes few calls.
    first, last = (
        np.ceil(np.log2(np.maximum(lengths + beyond, 1))).astype(np.int64)
        for beyond in (np.minimum(named, HEADROOM), named)
    )
    ks = np.minimum(np.left_shift(1, first), size)
    ks[lengths == 0] = 0
    while (pending := np.flatnonzero(ks)).size:
        many = int(ks[pending].min())
        group = pending[ks[pending] == many]
        own = head if edits.mask is None else head.masked(edits.mask[group])
        top = own.topk(hidden_states[group], many)
        unedited = ~among(group[:, None] * size + top.ids, keys) & (top.ids >= 0)
        places = np.cumsum(unedited, axis=1)
        enough = places[:, -1] >= lengths[group]
        chosen = unedited & (places <= lengths[group, None]) & enough[:, None]
        starts = np.broadcast_to(offsets[group, None], chosen.shape)[chosen]
        ids[starts + places[chosen] - 1] = top.ids[chosen]
        done = group[enough]
        proven[done], scanned[done] = top.proven[enough], scanned[done] + top.scanned[enough]
        fallback[done] = top.fallback[enough]
        ks[group] = min(2 * many, size)
        ks[done] = 0
    scanned = np.minimum(scanned, size)
    calls = float((last - first + 1).max())  # the most that a row may need; their errors add up
    max_error = min(1.0, calls * head.max_error)
    return offsets, ids, Provenance(proven, scanned.astype(np.int32), fallback, max_error)
