"""The pairs of a beam step on a GPU, by the ranks and doubts of kernels/topk/merge.best_pairs.

log Z is in float64 with its interval. Nothing is waited for, so that nothing is computed more
closely: a group whose order that leaves open is not exact. Hypotheses with equal rows of hidden are
compared without log Z, and so are finished ones. A hypothesis whose row of hidden cannot be
answered, or whose score is not finite, has no continuations.

Shape letters: B rows (hypotheses), D hidden size, G groups, N tokens a hypothesis, H hypotheses of
a group, K pairs a group.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from logitsieve.api.requests import Beams
from logitsieve.decoding.logit_edits import LARGEST
from logitsieve.gpu.log_z import DeviceLogZ, rounded_down
from logitsieve.kernels.topk.merge import ROUNDED


class PairColumns(NamedTuple):
    """All pairs of each group, [G, H N], parents after each other; float64 but for `missing`."""

    scores: Tensor  # of the hypothesis
    logits: Tensor
    apart: Tensor  # the logit less the largest of its row
    value: Tensor  # log Z less that, and bounds of it
    low: Tensor
    high: Tensor
    divisors: Tensor  # of scores, to rank by
    alike: Tensor  # equal numbers for hypotheses of a group that have the same log Z
    missing: Tensor  # bool

    def ranks(self, rest: Tensor, off: float) -> Tensor:
        """(score + log p) / divisor, and `off` times more than it can be rounded by."""
        magnitude = self.scores.abs() + self.apart.abs() + rest.abs()
        ranks = (self.scores + (self.apart - rest) + off * ROUNDED * magnitude) / self.divisors
        return ranks.masked_fill(self.missing, -torch.inf)

    def unnormalized(self, off: float) -> Tensor:
        """score + logit, and `off` times more than it can be rounded by."""
        magnitude = self.scores.abs() + self.logits.abs()
        return self.scores + self.logits + off * ROUNDED * magnitude

    def at(self, places: Tensor) -> PairColumns:
        """The pairs at places [G, ...]."""
        flat = places.flatten(1)
        return PairColumns(*(field.gather(1, flat).view(places.shape) for field in self))


def next_beams(
    beams: Beams, hidden: Tensor, ids: Tensor, logits: Tensor, log_z: DeviceLogZ
) -> tuple[Any, ...]:
    """parents, tokens, scores, ranks and finished [G, K], and doubtful [G].

    ids and float64 logits [B, N] are the best tokens of each hypothesis; the vectors of `beams` are
    tensors. Equal ranks are ordered by parent, then by place. A group is doubtful if bounds leave
    open which pairs are chosen, or their order.
    """
    tokens, ended, pairs = _pairs(beams, hidden, ids, logits, log_z)
    ranks = pairs.ranks(pairs.value, 0.0)
    order = torch.sort(ranks, dim=1, descending=True, stable=True).indices[:, : beams.beams_out]
    best = pairs.at(order)
    off = ROUNDED * (best.scores.abs() + best.apart.abs() + best.value.abs())
    off = off.masked_fill(best.alike < 0, 0.0)
    scores = best.scores + (best.apart - best.value) - off
    ranks = (scores / best.divisors).masked_fill(best.missing, -torch.inf).cummin(1).values
    short = max(0, beams.beams_out - order.shape[1])

    def padded(values: Tensor, filler: float) -> Tensor:
        filled = values.masked_fill(best.missing, filler)
        return torch.nn.functional.pad(filled, (0, short), value=filler)

    return (
        padded(order // ids.shape[1], -1).int(),
        padded(tokens.gather(1, order), -1).int(),
        padded(rounded_down(scores.clamp(-LARGEST, LARGEST)), -torch.inf),
        padded(rounded_down(ranks.clamp(-LARGEST, LARGEST)), -torch.inf),
        padded(ended.gather(1, order), False),
        _doubtful(pairs, best, order, ids.shape[1]),
    )


def _pairs(
    beams: Any, hidden: Tensor, ids: Tensor, logits: Tensor, log_z: DeviceLogZ
) -> tuple[Tensor, Tensor, PairColumns]:
    """Tokens and whether they end a hypothesis, [G, H N], and the pairs.

    A finished hypothesis has one token, its end, with a logit and a log Z of 0.
    """
    finished, lengths = beams.finished[:, None], beams.lengths[:, None]
    first = torch.arange(ids.shape[1], device=ids.device) == 0
    ended, tokens = finished & first, ids
    if beams.eos_ids:
        tokens = torch.where(ended, beams.eos_ids[0], ids)
    scores = beams.scores.double()[:, None]
    divisors = ((5.0 + (lengths.double() + ~finished)) / 6.0) ** beams.length_alpha
    live = logits, logits - log_z.top[:, None], *(each[:, None] for each in log_z[:3])
    numbers = [each.masked_fill(finished, 0.0) for each in live]
    alike = _alike(hidden.float().reshape(-1, beams.beams_in, hidden.shape[1])).view(-1, 1)
    rank = scores + numbers[1] - numbers[2]
    missing = (finished & ~first) | ~torch.isfinite(rank)
    for end in beams.eos_ids:
        ended = ended | (tokens == end)
    fields = scores, *numbers, divisors, alike.masked_fill(finished, -1), missing
    count = beams.beams_in * ids.shape[1]
    flat = (each.expand(ids.shape).reshape(-1, count) for each in fields)
    return tokens.reshape(-1, count), ended.reshape(-1, count), PairColumns(*flat)


def _alike(hidden: Tensor) -> Tensor:
    """[G, H] the first hypothesis of the group with the same row of hidden [G, H, D]."""
    found = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
    for beam in reversed(range(hidden.shape[1])):
        found = found.masked_fill((hidden == hidden[:, beam, None]).all(2), beam)
    return found


def _doubtful(pairs: PairColumns, best: PairColumns, order: Tensor, width: int) -> Tensor:
    """[G] whether a chosen pair may not be better than the next one of another hypothesis.

    Hypothesis b's next one, beside each chosen pair, is the one after those chosen before.
    """
    beams = torch.arange(pairs.scores.shape[1] // width, device=order.device)
    parents = (order // width)[:, :, None]
    chosen = (parents == beams).long()
    fronts = chosen.cumsum(1) - chosen
    rivals = pairs.at(beams * width + fronts.clamp(max=width - 1))
    best = PairColumns(*(field[:, :, None] for field in best))
    least, most = best.ranks(best.high, -1.0), rivals.ranks(rivals.low, 1.0)
    tied = (best.scores == rivals.scores) & (best.logits == rivals.logits) & (parents < beams)
    open_ = ~(tied | (rivals.unnormalized(1.0) < best.unnormalized(-1.0)))
    alike = (best.alike == rivals.alike) & (best.divisors == rivals.divisors)
    doubt = torch.where(alike, open_, ~(most < least))
    possible = (fronts < width) & ~rivals.missing & ~best.missing & (parents != beams)
    return (doubt & possible).flatten(1).any(1)
