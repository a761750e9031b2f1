"""Draws from the softmax of exact logits, and log Z in float64 with proven bounds.

Seed for seed, draws equal those of the host (kernels/sampling/gumbel.py), unless rounding in
float64 decides. log Z is as in kernels/sampling/log_z.py, with sums of SUMMED_AT_ONCE numbers.
PyTorch's exp and log1p are assumed to be within two units in the last place (CUDA's manual: one).
"""

import numpy as np
import torch
from torch import Tensor
from triton import cdiv

from logitsieve.api.requests import Sampling
from logitsieve.gpu.kernels import gumbel_kernel
from logitsieve.gpu.matrix import LOGITS_AT_ONCE
from logitsieve.kernels.sampling import gumbel
from logitsieve.kernels.sampling.gumbel import BLOCK
from logitsieve.kernels.sampling.log_z import LOG_ERROR, SPREAD, STEP, TINY
from logitsieve.kernels.sampling.philox import LEAST

SUMMED_AT_ONCE = 1024
IDS = 256  # per program
LEAST_NOISE = int(LEAST)
WORD = 0xFFFFFFFF


def draw(
    logits: Tensor, seeds: Tensor, how: Sampling, scale: float, first_id: int
) -> tuple[Tensor, Tensor]:
    """Return ids int32 [B, N] like `FullHead.draw`, and log Z [B, 4] of the filtered ids.

    logits [B, V] are float64 after edits, -inf to exclude; seeds [B] int64 are the bits of uint64.
    """
    rows, vocab_size = logits.shape
    weights, top, best = weights_of(logits, scale)
    scaled = logits.sub(top[:, None]).mul_(scale)
    if how.filtered:
        left = weights >= how.min_p
        if how.top_p < 1.0:
            left &= nucleus(logits, weights, how.top_p)
        weights, scaled = weights * left, scaled.masked_fill(~left, -torch.inf)
    ids = torch.empty((rows, how.samples), dtype=torch.int32, device=logits.device)
    named = range(first_id, first_id + vocab_size)
    most = max(1, LOGITS_AT_ONCE // (rows * vocab_size))
    for first in range(0, how.samples, most):
        draws = range(first, min(first + most, how.samples))
        noisy = gumbel_noise(seeds, how.step, draws, named).add_(scaled[:, None])
        ids[:, draws.start : draws.stop] = noisy.argmax(dim=2)  # the first of equal ones
    return ids, fields_of(weights, top, best)


def nucleus(logits: Tensor, weights: Tensor, top_p: float) -> Tensor:
    """Return [B, V] True for ids with less than top_p of all weight before them, best first."""
    order = logits.sort(dim=1, descending=True, stable=True).indices
    sums = weights.gather(1, order).cumsum(dim=1)
    before = torch.nn.functional.pad(sums[:, :-1], (1, 0))
    return torch.zeros_like(order, dtype=torch.bool).scatter(
        1, order, before < top_p * sums[:, -1:]
    )


def weights_of(logits: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return e^{scale (x - top)} [B, V] of float64 logits, the largest [B], and ids with it [B]."""
    top, best = logits.max(dim=1)
    return logits.sub(top[:, None]).mul_(scale).exp_(), top, best


def fields_of(weights: Tensor, top: Tensor, best: Tensor) -> Tensor:
    """Return TOP, VALUE, LOW and HIGH [B, 4] of weights [B, V], 0 for excluded ids."""
    vocab_size = weights.shape[1]
    others = weights.scatter(1, best[:, None], 0.0)  # the largest is the 1 of log(1 + S)
    others = torch.nn.functional.pad(others, (0, -vocab_size % SUMMED_AT_ONCE))
    total = others.view(len(weights), -1, SUMMED_AT_ONCE).sum(dim=2).sum(dim=1)
    spread = SPREAD + STEP * (SUMMED_AT_ONCE + vocab_size / SUMMED_AT_ONCE)
    tiny = vocab_size * TINY
    low = torch.log1p((total * (1.0 - spread) - tiny).clamp(min=0.0)) * (1.0 - LOG_ERROR)
    high = torch.log1p(total * (1.0 + spread) + tiny) * (1.0 + LOG_ERROR)
    return torch.stack([top, torch.log1p(total), low, high], dim=1)


def gumbel_noise(seeds: Tensor, step: int, draws: range, ids: range) -> Tensor:
    """Return float64 noise [B, N, V] of consecutive `ids` for consecutive `draws` of a step.

    `step` is a uint64. `ids` begin at a multiple of 32.
    """
    if seeds.is_cuda:
        return launch_gumbel_noise(seeds, step, draws, ids)
    named = np.tile(np.arange(ids.start, ids.stop, dtype=np.int32), (draws.stop, 1))
    noise = np.empty((len(seeds), *named.shape))
    for seed, own in zip(seeds.numpy().view(np.uint64), noise, strict=True):
        gumbel.gumbel_noise(seed, np.uint64(step), named, own)
    return torch.from_numpy(noise[:, draws.start :])


def launch_gumbel_noise(seeds: Tensor, step: int, draws: range, ids: range) -> Tensor:
    shape = len(seeds), len(draws), len(ids)
    noise = torch.empty(shape, dtype=torch.float64, device=seeds.device)
    numbers = step & WORD, step >> 32, draws.start, ids.start
    counters = torch.tensor(numbers).to(seeds.device, non_blocking=True)
    gumbel_kernel[(len(seeds) * len(draws) * cdiv(len(ids), IDS),)](
        seeds, counters, noise, len(draws), len(ids), STREAM=LEAST_NOISE, BLOCK=BLOCK, IDS=IDS
    )
    return noise
