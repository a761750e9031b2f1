"""Draws from the softmax of exact logits: what filters leave, perturbed by Gumbel noise.

The ids are those of the head `exact` on the host, seed for seed, but where float64 sums and
logarithms that round differently decide.

Shape letters: B rows of hidden, N draws, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from logitsieve.gpu.gumbel import gumbel_noise
from logitsieve.gpu.log_z import fields_of, weights_of
from logitsieve.gpu.matrix import LOGITS_AT_ONCE
from logitsieve.heads._base.draw_options import DrawOptions


def draw(logits: Tensor, seeds: Tensor, options: DrawOptions) -> tuple[Tensor, Tensor]:
    """Return ids [B, N] int32 as `options` ask, and log Z [B, 4] of what filters leave.

    logits [B, V] float64 as edited, -inf for what must not be drawn; seeds [B] int64, the bits of
    uint64.
    """
    rows, vocab_size = logits.shape
    weights, top, best = weights_of(logits, options.scale)
    scaled = logits.sub(top[:, None]).mul_(options.scale)
    if options.filtered:
        left = weights >= options.min_p
        if options.top_p < 1.0:
            left &= nucleus(logits, weights, options.top_p)
        weights, scaled = weights * left, scaled.masked_fill(~left, -torch.inf)
    ids = torch.empty((rows, options.samples), dtype=torch.int32, device=logits.device)
    named = range(options.first_id, options.first_id + vocab_size)
    most = max(1, LOGITS_AT_ONCE // (rows * vocab_size))
    for first in range(0, options.samples, most):
        draws = range(first, min(first + most, options.samples))
        noisy = gumbel_noise(seeds, options.step, draws, named).add_(scaled[:, None])
        ids[:, draws.start : draws.stop] = noisy.argmax(dim=2)  # the first of equal ones
    return ids, fields_of(weights, top, best)


def nucleus(logits: Tensor, weights: Tensor, top_p: float) -> Tensor:
    """Return [B, V] True for ids before which, best first, less than top_p of all weight lies."""
    order = logits.sort(dim=1, descending=True, stable=True).indices
    sums = weights.gather(1, order).cumsum(dim=1)
    before = torch.nn.functional.pad(sums[:, :-1], (1, 0))
    return torch.zeros_like(order, dtype=torch.bool).scatter(
        1, order, before < top_p * sums[:, -1:]
    )
