"""Draws on a GPU: the ids that the host draws, by the same seeds.

Shape letters: B batch rows, N draws, K ids of a list.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.requests import Sampling
from logitsieve.api.results import Provenance
from logitsieve.decoding.normalizers import CANDIDATES
from logitsieve.decoding.sampler import Draws
from logitsieve.gpu.decoding.normalizers import (
    DRAWN,
    NORMALIZERS,
    log_z,
    normalizes_there,
)
from logitsieve.gpu.decoding.requests import there
from logitsieve.gpu.heads import GpuHead
from logitsieve.gpu.heads.exact import GpuExact
from logitsieve.gpu.plans.nucleus import ListDraws
from logitsieve.index import Index


def draws_there(index: Index, head: GpuHead, how: Sampling, normalizer: str) -> bool:
    """Whether the GPU can draw so: from a list that it finds, or from all by a head that can."""
    if how.top_k > 0:
        return head.fits(how.top_k)
    filtered = how.top_p < 1.0 or how.min_p > 0.0
    return not filtered and head.name in DRAWN and normalizes_there(index, normalizer)


def narrowed(how: Sampling, vocab_size: int) -> Sampling:
    """The same with a `top_k` where a temperature of 0 asks for one, and within the vocabulary."""
    return how._replace(top_k=min(how.top_k, vocab_size) if how.temperature else 1)


def sample(index: Index, head: GpuHead, hidden: Tensor, how: Sampling, normalizer: str) -> Draws:
    """Draws for each row of hidden [B, D], where `draws_there`; `how.seeds` are a tensor."""
    if how.top_k > 0:
        return _from_lists(index, head, hidden, how)
    return _from_all(index, head, hidden, how, normalizer)


def logits_of(index: Index, hidden: Tensor, ids: Tensor) -> Tensor:
    """[B, M] float64 of ids [B, M], NaN where a row cannot be answered."""
    return cast(GpuExact, index.head("exact")).logits64(hidden, ids)


def _from_lists(index: Index, head: GpuHead, hidden: Tensor, how: Sampling) -> Draws:
    top = head.topk(hidden, how.top_k)
    scale = 1.0 / (how.temperature or 1.0)  # at 0 there is one id to choose from
    step = np.array([how.step], np.uint64).view(np.int64)
    plan = ListDraws(
        cast(Any, top.ids), logits_of(index, hidden, cast(Any, top.ids)), how.samples,
        cast(Any, how.seeds), there(step, hidden.device),
        there(np.array([scale, how.top_p, how.min_p]), hidden.device),
    )  # fmt: skip
    with head.launching():
        plan.run()
    provenance = Provenance(top.exact, top.scanned, top.exact & (not head.proves))
    ids, log_probs = cast(Any, (plan.drawn, plan.log_probs))
    return Draws(ids, log_probs, provenance, CANDIDATES.name, log_z(plan.log_z))


def _from_all(index: Index, head: GpuHead, hidden: Tensor, how: Sampling, normalizer: str) -> Draws:
    scale, drawing = 1.0 / how.temperature, cast(Any, head)
    ids, own, scanned = drawing.draw(hidden, how.samples, how.seeds, how.step, scale, None)
    found, value = DRAWN[head.name](own)
    if normalizer not in ("", head.name):
        found = NORMALIZERS[normalizer](index, hidden, scale)
        value = cast(Any, found.value).double()
    logits = logits_of(index, hidden, ids)
    # An estimate of log Z may lie below the logit of what was drawn, which log Z never does.
    log_probs = (logits * scale - value[:, None]).clamp(max=0.0).float()
    drawn = ids[:, 0] >= 0
    provenance = Provenance(*cast(Any, (drawn, scanned, torch.zeros_like(drawn))))
    return Draws(ids, log_probs, provenance, normalizer or head.name, found)  # type: ignore[arg-type]
