"""log Z in float64 with its interval, from exact logits of all ids.

As in kernels/sampling/log_z.py: log Z = scale top + log(1 + S), top being the largest logit and S
the sum of all other e^{scale (x - top)}. Runs of R = SUMMED_AT_ONCE terms are summed, then their
sums, each in any order: a term goes through at most R + V / R additions. PyTorch's exp and log1p
are assumed to be within two units in the last place (CUDA's manual: one).

Shape letters: B rows of hidden, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from logitsieve.kernels.sampling.log_z import LOG_ERROR, SPREAD, STEP, TINY

SUMMED_AT_ONCE = 1024


def weights_of(logits: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return e^{scale (x - top)} [B, V] of float64 logits, the largest [B], and ids with it [B].

    At least one logit of a row is finite.
    """
    top, best = logits.max(dim=1)
    return logits.sub(top[:, None]).mul_(scale).exp_(), top, best


def fields_of(weights: Tensor, top: Tensor, best: Tensor) -> Tensor:
    """Return TOP, VALUE, LOW and HIGH [B, 4] of weights [B, V], 0 for what does not count."""
    vocab_size = weights.shape[1]
    others = weights.scatter(1, best[:, None], 0.0)  # the largest is the 1 of log(1 + S)
    others = torch.nn.functional.pad(others, (0, -vocab_size % SUMMED_AT_ONCE))
    total = others.view(len(weights), -1, SUMMED_AT_ONCE).sum(dim=2).sum(dim=1)
    spread = SPREAD + STEP * (SUMMED_AT_ONCE + vocab_size / SUMMED_AT_ONCE)
    tiny = vocab_size * TINY
    low = torch.log1p((total * (1.0 - spread) - tiny).clamp(min=0.0)) * (1.0 - LOG_ERROR)
    high = torch.log1p(total * (1.0 + spread) + tiny) * (1.0 + LOG_ERROR)
    return torch.stack([top, torch.log1p(total), low, high], dim=1)
