"""The pairs of a beam step on a GPU, in the order of kernels/topk/beams.best_pairs.

A hypothesis whose row of hidden cannot be answered, or whose score is not finite, has no
continuations.

Shape letters: B rows (hypotheses), G groups, N tokens a hypothesis, K pairs a group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logitsieve.api.requests import Beams
from logitsieve.decoding.logit_edits import LARGEST


def next_beams(beams: Beams, ids: Tensor, log_probs: Tensor) -> tuple[Any, ...]:
    """parents, tokens, scores, ranks and finished [G, K]: equal ranks by parent, then by place.

    ids and log_probs [B, N] are the tokens of each hypothesis; the vectors of `beams` are tensors.
    """
    count = beams.beams_in * ids.shape[1]  # pairs of a group
    pairs = (each.reshape(-1, count) for each in _pairs(beams, ids, log_probs))
    tokens, scores, ranks, finished = pairs
    short = max(0, beams.beams_out - ranks.shape[1])
    order = torch.sort(ranks, dim=1, descending=True, stable=True).indices[:, : beams.beams_out]
    best = ranks.gather(1, order)
    missing = best == -torch.inf

    def padded(values: Tensor, filler: float) -> Tensor:
        filled = values.masked_fill(missing, filler)
        return torch.nn.functional.pad(filled, (0, short), value=filler)

    return (
        padded(order // ids.shape[1], -1).int(),
        padded(tokens.gather(1, order), -1).int(),
        padded(_finite(scores.gather(1, order)), -torch.inf),
        padded(_finite(best), -torch.inf),
        padded(finished.gather(1, order), False),
    )


def _pairs(beams: Any, ids: Tensor, log_probs: Tensor) -> tuple[Tensor, ...]:
    """Every hypothesis with each of its tokens: tokens int32, scores, ranks and finished [B, N].

    Scores and ranks are float64; a rank is -inf where there is no pair. A finished hypothesis has
    one token, its end, at no cost.
    """
    finished, lengths = beams.finished[:, None], beams.lengths[:, None]
    first = torch.arange(ids.shape[1], device=ids.device) == 0
    ended, tokens = finished & first, ids
    if beams.eos_ids:
        tokens = torch.where(ended, beams.eos_ids[0], ids)
    scores = beams.scores.double()[:, None] + log_probs.masked_fill(ended, 0.0)
    ranks = scores / ((5.0 + (lengths.double() + ~finished)) / 6.0) ** beams.length_alpha
    missing = (finished & ~first) | ~torch.isfinite(ranks)
    for end in beams.eos_ids:
        ended = ended | (tokens == end)
    return tokens, scores, ranks.masked_fill(missing, -torch.inf), ended


def _finite(values: Tensor) -> Tensor:
    return values.clamp(-LARGEST, LARGEST).float()
