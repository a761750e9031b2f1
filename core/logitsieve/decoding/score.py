"""Log-probabilities of given ids, with log Z by a normalizer.

Shape letters: B batch rows, D hidden size, T targets a row, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.results import Float32, Int32, Provenance
from logitsieve.decoding.logit_edits import check_ids, open_edits
from logitsieve.decoding.normalizers import LogZ, Normalizer, Query


class TargetScores(NamedTuple):
    """Log-probabilities, and their source."""

    log_probs: Float32  # [B, T]
    provenance: Provenance  # exact: log Z is the full softmax's, or proven to equal it as printed
    log_z: LogZ


def score(
    query: Query, targets: Int32, constraints: Constraints | None, normalizer: Normalizer
) -> TargetScores:
    """logit - log Z of `targets` [B, T] for each row of the query; -inf where p is 0.

    p is 0 for ids that constraints forbid and, under "candidates", for ids that the head does not
    look at. "lowrank" has a preview's logit for those. A row's `scanned` are its targets, whatever
    the normalizer computes. InvalidRequest names the field at fault, and "constraints" where they
    leave nothing.
    """
    rows, softmax = len(query.hidden), query.index.softmax
    check_ids(targets, softmax.vocab_size, "targets")
    if constraints is not None:
        query = query._replace(edits=open_edits(softmax, constraints, query.hidden))
    log_z, logits = normalizer.target_logits(query, targets)
    assert log_z.value is not None, "a normalizer finds a value"
    possible = logits > -np.inf
    log_probs = np.full(targets.shape, -np.inf, np.float32)
    owners = np.nonzero(possible)[0]
    with np.errstate(over="ignore"):  # what is less than any float32 is -inf too
        log_probs[possible] = logits[possible] - log_z.value.astype(np.float64)[owners]
    exact = normalizer.proven(log_z, rows)
    scanned, fallback = np.full(rows, targets.shape[1], np.int32), np.zeros(rows, np.bool_)
    return TargetScores(log_probs, Provenance(exact, scanned, fallback), log_z)
