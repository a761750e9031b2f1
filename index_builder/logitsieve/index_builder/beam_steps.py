"""Beam steps of a head, judged by exact ones.

Consecutive contexts stand for the hypotheses of a group, with equal scores: all of them compete.

Shape letters: N rows of a block, G groups, K pairs.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Int32
from logitsieve.evaluation.precision import lower_bound
from logitsieve.evaluation.timing import least_us
from logitsieve.heads._base.kernel_head import BestWithLogZ, Head
from logitsieve.kernels.topk.merge import VALUE, best_pairs

BEAMS = 5
PAIRS = 10  # of a group: two for each hypothesis, since one of them may end it


class Steps(NamedTuple):
    """The pairs of a group that are among the exact step's, and the errors of log Z."""

    mean: float  # share of pairs
    low: float  # its one-sided 95 % bound
    same: float  # share of groups with the exact pairs in their order
    log_z_error: float  # root mean square, nats


class StepJudge:
    """Groups of contexts in blocks [N, D] with their exact steps."""

    def __init__(self, full: Head, blocks: Iterable[Float32]) -> None:
        groups = (block for block in blocks if len(block) >= BEAMS)
        self._truths = [(each, full.best_with_log_z(each, _pairs_of(full))) for each in groups]

    def judge(self, head: Head) -> Steps | None:
        """Return its precision, or None without a group."""
        shares, same, errors = [], [], []
        for block, truth in self._truths:
            found = head.best_with_log_z(block, truth.ids.shape[1])
            ours, theirs = _pairs(found), _pairs(truth)
            equal = (ours[:, :, None, :] == theirs[:, None, :, :]).all(axis=3)
            shares.append(equal.any(axis=2).mean(axis=1))
            same.append((ours == theirs).all(axis=(1, 2)))
            errors.append(found.log_z[:, VALUE] - truth.log_z[:, VALUE])
        share_G = np.concatenate([*shares, np.empty(0)])
        if not share_G.size:
            return None
        error = float(np.sqrt((np.concatenate(errors) ** 2).mean()))
        mean, right = float(share_G.mean()), float(np.concatenate(same).mean())
        return Steps(mean, lower_bound(share_G), right, error)


def step_us(head: Head, hidden_states: Float32, batch: int, limit_ns: int) -> float:
    """Return microseconds a row of `best_with_log_z` for the pairs of a step, as `us_per_row`."""
    k = _pairs_of(head)
    head.best_with_log_z(hidden_states[:1], k)
    return least_us(
        lambda rows: head.best_with_log_z(rows, k), hidden_states, batch, limit_ns=limit_ns
    )


def _pairs_of(head: Head) -> int:
    return min(PAIRS, head.vocab_size)


def _pairs(best: BestWithLogZ) -> Int32:
    """Return the hypothesis and the id of each group's pairs, [G, K, 2]."""
    groups, k = len(best.ids) // BEAMS, best.ids.shape[1]
    rows = groups * BEAMS
    parents, places = np.empty((groups, k), np.int32), np.empty((groups, k), np.int32)
    best_pairs(
        np.zeros(rows), np.ones(rows), np.arange(rows), best.logits[:rows].copy(),
        np.full(rows, k), best.log_z[:rows].copy(), parents, places, np.empty(groups, np.bool_),
    )  # fmt: skip
    owners = np.arange(groups)[:, None] * BEAMS + parents
    return np.stack([parents, best.ids[owners, places]], axis=2)
