"""Gumbel noise of all ids, by the counters and bits that the heads on the host use.

kernels/sampling/gumbel.py defines it: the noise of an id is -log E, E being its exponential number.
The least of the numbers of sixteen ids, a block, comes from the stream LEAST, whose bits also say
which of them has it; each other id adds a number of its own, from the stream NOISE. So equal seeds
give equal ids on every device, but where logarithms that round differently decide.

Words 0 and 1 of the four of a counter are the bits of the even id, or block, of a pair, words 2 and
3 those of the odd one, the lower word first.

Shape letters: B rows of hidden, N draws, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton import cdiv

from logitsieve.gpu.kernels import gumbel_kernel
from logitsieve.kernels.sampling import philox
from logitsieve.kernels.sampling.gumbel import BLOCK

IDS = 256  # of a program
LEAST = int(philox.LEAST)
WORD = 0xFFFFFFFF
FACTORS = tuple(map(int, philox.FACTORS))
WEYL = tuple(map(int, philox.WEYL))


def gumbel_noise(seeds: Tensor, step: int, draws: range, ids: range) -> Tensor:
    """Return float64 noise [B, N, V] of consecutive `ids` for consecutive `draws` of a step.

    `seeds` [B] int64 hold the bits of uint64; `step` is a uint64. `ids` begin at a multiple of 32.
    """
    if seeds.is_cuda:
        return launch_gumbel_noise(seeds, step, draws, ids)
    number = torch.arange(draws.start, draws.stop)[None, :, None]
    blocks = range(ids.start // BLOCK, -(-ids.stop // BLOCK))
    low, high = _words(seeds, step, number | LEAST, blocks)
    least = (_exponential(low, high) / BLOCK).repeat_interleave(BLOCK, 2)[..., : len(ids)]
    place = (low & (BLOCK - 1)).repeat_interleave(BLOCK, 2)[..., : len(ids)]
    more = _exponential(*_words(seeds, step, number, ids))
    own = torch.arange(ids.start, ids.stop) % BLOCK == place
    return -torch.where(own, least, least + more).log()


def _words(seeds: Tensor, step: int, draw: Tensor, places: range) -> tuple[Tensor, Tensor]:
    """Return the lower and the higher word [B, N, P] of consecutive `places`, the first even.

    Philox4x32-10. An int64 product has the bits of the uint64 one.
    """
    key0, key1 = seeds[:, None, None] & WORD, seeds[:, None, None] >> 32 & WORD
    pairs = torch.arange(places.start // 2, -(-places.stop // 2))
    c0, c1, c2, c3 = pairs, draw, torch.tensor(step & WORD), torch.tensor(step >> 32)
    for _ in range(philox.ROUNDS):
        low, high = FACTORS[0] * c0, FACTORS[1] * c2
        c0, c1, c2, c3 = (
            (high >> 32 & WORD) ^ c1 ^ key0,
            high & WORD,
            (low >> 32 & WORD) ^ c3 ^ key1,
            low & WORD,
        )
        key0, key1 = (key0 + WEYL[0]) & WORD, (key1 + WEYL[1]) & WORD
    lower, higher = (torch.stack(pair, 3).flatten(2) for pair in ((c0, c2), (c1, c3)))
    return lower[..., : len(places)], higher[..., : len(places)]


def _exponential(low: Tensor, high: Tensor) -> Tensor:
    """Return -log u of two words, u in (0, 1) being exact."""
    low, high = (low >> 12).double(), high.double()
    return -(high * 2.0**-32 + (low * 2.0**-52 + 2.0**-53)).log()


def launch_gumbel_noise(seeds: Tensor, step: int, draws: range, ids: range) -> Tensor:
    """Return the same by the kernel."""
    shape = len(seeds), len(draws), len(ids)
    noise = torch.empty(shape, dtype=torch.float64, device=seeds.device)
    numbers = step & WORD, step >> 32, draws.start, ids.start
    counters = torch.tensor(numbers).to(seeds.device, non_blocking=True)
    gumbel_kernel[(len(seeds) * len(draws) * cdiv(len(ids), IDS),)](
        seeds, counters, noise, len(draws), len(ids), STREAM=LEAST, BLOCK=BLOCK, IDS=IDS
    )
    return noise
