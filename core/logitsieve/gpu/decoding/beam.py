"""One step of a beam search on a GPU, in the order of kernels/beams.best_pairs.

A hypothesis whose row of hidden cannot be answered, or whose score is not finite, has no
continuations.

Shape letters: B rows (hypotheses), G groups, N tokens a hypothesis, K pairs a group.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from logitsieve.api.requests import Beams
from logitsieve.api.results import Provenance
from logitsieve.decoding.beam import BeamChoice
from logitsieve.decoding.logit_edits import LARGEST
from logitsieve.decoding.normalizers import LogZ
from logitsieve.gpu.heads import GpuHead
from logitsieve.gpu.heads.exact import GpuExact
from logitsieve.index import Index


class _Pairs(NamedTuple):
    """Every hypothesis with each of its tokens."""

    tokens: Tensor  # [B, N] int32
    scores: Tensor  # [B, N] float64
    ranks: Tensor  # [B, N] float64, -inf where there is no pair
    finished: Tensor  # [B, N]


def beam_step(index: Index, head: GpuHead, hidden: Tensor, beams: Beams, k: int) -> BeamChoice:
    """The best continuations of the hypotheses at the rows of hidden [B, D], by the exact log Z.

    The vectors of `beams` are tensors; `k` is how many tokens of a hypothesis may be among them.
    """
    top, finished = cast(Any, head.topk(hidden, k)), cast(Tensor, beams.finished)
    exact = cast(GpuExact, index.head("exact"))
    logits, log_z = exact.logits64(hidden, top.ids), exact.log_z(hidden, 1.0)
    chosen = _chosen(beams, _pairs(beams, top.ids, logits - log_z.double()[:, None]))
    proven = ((top.exact & ~torch.isnan(log_z)) | finished).view(-1, beams.beams_in).all(1)
    provenance: Any = (
        proven.repeat_interleave(beams.beams_in),
        top.scanned.masked_fill(finished, 0),
        top.exact & (not head.proves) & ~finished,
    )
    reported: Any = log_z.masked_fill(finished, torch.nan)
    return BeamChoice(*cast(Any, (*chosen, Provenance(*provenance), LogZ(reported))))


def _pairs(beams: Beams, ids: Tensor, log_probs: Tensor) -> _Pairs:
    """A finished hypothesis has one token, its end, at no cost."""
    finished, lengths = (cast(Tensor, each)[:, None] for each in (beams.finished, beams.lengths))
    first = torch.arange(ids.shape[1], device=ids.device) == 0
    ended, tokens = finished & first, ids
    if beams.eos_ids:
        tokens = torch.where(ended, beams.eos_ids[0], ids)
    scores = cast(Tensor, beams.scores).double()[:, None] + log_probs.masked_fill(ended, 0.0)
    ranks = scores / ((5.0 + (lengths.double() + ~finished)) / 6.0) ** beams.length_alpha
    missing = (finished & ~first) | ~torch.isfinite(ranks)
    for end in beams.eos_ids:
        ended = ended | (tokens == end)
    return _Pairs(tokens, scores, ranks.masked_fill(missing, -torch.inf), ended)


def _chosen(beams: Beams, pairs: _Pairs) -> tuple[Tensor, ...]:
    """parents, tokens, scores, ranks and finished [G, K]: equal ranks by parent, then by place."""
    listed = pairs.ranks.shape[1]
    tokens, scores, ranks, finished = (each.reshape(-1, beams.beams_in * listed) for each in pairs)
    short = max(0, beams.beams_out - ranks.shape[1])
    order = torch.sort(ranks, dim=1, descending=True, stable=True).indices[:, : beams.beams_out]
    best = ranks.gather(1, order)
    missing = best == -torch.inf

    def told(values: Tensor, instead: float) -> Tensor:
        known = values.masked_fill(missing, instead)
        return torch.nn.functional.pad(known, (0, short), value=instead)

    return (
        told(order // listed, -1).int(),
        told(tokens.gather(1, order), -1).int(),
        told(_printed(scores.gather(1, order)), -torch.inf),
        told(_printed(best), -torch.inf),
        told(finished.gather(1, order), False),
    )


def _printed(values: Tensor) -> Tensor:
    return values.clamp(-LARGEST, LARGEST).float()
