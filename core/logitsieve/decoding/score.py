"""Log-probabilities of given ids, with log Z by a normalizer.

Shape letters: B batch rows, D hidden size, T targets a row, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64
from logitsieve.decoding.known import known
from logitsieve.decoding.logit_edits import Edits, check_ids, edits_of, keys_of
from logitsieve.decoding.normalizers import LogZ, find_normalizer, low_rank_scores
from logitsieve.heads._base.head import Head
from logitsieve.index import Index


class Scores(NamedTuple):
    """Log-probabilities, and what they were found by."""

    log_probs: Float32  # [B, T]
    log_z: LogZ
    exact: Bool  # [B] log Z is the full softmax's, or proven to equal it as printed


def score(
    index: Index,
    head: Head,
    hidden: Float32,
    targets: Int32,
    constraints: Constraints | None,
    normalizer: str,
) -> Scores:
    """logit - log Z of `targets` [B, T] for each row of hidden [B, D]; -inf where p is 0.

    That is what constraints forbid and, to "candidates", what the head does not look at; there
    "lowrank" has a preview's logit. InvalidRequest names the field at fault, and "constraints"
    where they leave nothing.
    """
    check_ids(targets, index.vocab_size, "targets")
    edits = None if constraints is None else edits_of(index.softmax, constraints, hidden)
    if edits is not None:
        require_some(edits, index.vocab_size)
    log_z, logits = _found(index, head, hidden, targets, edits, normalizer)
    assert log_z.value is not None, "a normalizer finds a value"
    possible = logits > -np.inf
    log_probs = np.full(targets.shape, -np.inf, np.float32)
    rows = np.nonzero(possible)[0]
    with np.errstate(over="ignore"):  # what is less than any float32 is -inf too
        log_probs[possible] = logits[possible] - log_z.value.astype(np.float64)[rows]
    return Scores(log_probs, log_z, is_closed(normalizer, log_z, len(hidden)))


def is_closed(normalizer: str, log_z: LogZ, rows: int) -> Bool:
    """[B] whether log Z is the full softmax's, computed or proven."""
    if log_z.low is None or log_z.high is None:
        return np.full(rows, normalizer == "exact")
    return np.asarray(log_z.low == log_z.high)


def require_some(edits: Edits, vocab_size: int) -> None:
    """InvalidRequest naming a row of which nothing may be answered, if there is one."""
    remaining = edits.remaining(vocab_size)
    if not remaining.all():
        got = f"nothing left in row {np.argmin(remaining)}"
        raise InvalidRequest("constraints", got, "at least one id for each row")


def logits_of(index: Index, hidden: Float32, targets: Int32, edits: Edits | None) -> Float64:
    """[B, T] the targets' logits; -inf for what edits forbid."""
    offsets = np.arange(len(targets) + 1, dtype=np.int64) * targets.shape[1]
    logits = index.softmax.logits64(hidden, offsets, targets.ravel())
    if edits is not None:
        _edit(logits, keys_of(offsets, targets.ravel(), index.vocab_size), edits, index.vocab_size)
    return logits.reshape(targets.shape)


def _found(
    index: Index,
    head: Head,
    hidden: Float32,
    targets: Int32,
    edits: Edits | None,
    normalizer: str,
) -> tuple[LogZ, Float32 | Float64]:
    """log Z, and [B, T] what the distribution has for the targets; -inf for those of p = 0."""
    if normalizer == "lowrank":
        return low_rank_scores(index, head, hidden, targets, edits)
    logits = logits_of(index, hidden, targets, edits)
    if normalizer == "candidates":
        found = known(head.candidates(hidden, 1), edits, index.vocab_size)
        offsets = np.arange(len(targets) + 1, dtype=np.int64) * targets.shape[1]
        keys = keys_of(offsets, targets.ravel(), index.vocab_size).reshape(targets.shape)
        inside = np.isin(keys, keys_of(found.offsets, found.ids, index.vocab_size))
        logits = np.where(inside, logits, -np.inf)
    return find_normalizer(normalizer)(index, head, hidden, 1, edits, 1.0), logits


def _edit(logits: Float64, wanted: Int64, edits: Edits, vocab_size: int) -> None:
    """Replace, in place, the logits of the wanted keys that `edits` name or forbid."""
    logits[edits.only[wanted // vocab_size]] = -np.inf
    keys = keys_of(edits.offsets, edits.ids, vocab_size)
    named = np.isin(wanted, keys)
    logits[named] = edits.values[np.searchsorted(keys, wanted[named])]
