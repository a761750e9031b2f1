"""Draws on a card: the ids that the host draws, by the same seeds.

Shape letters: B batch rows, N draws, K ids of a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from logitsieve.decoding.card.requests import there
from logitsieve.decoding.normalizers import LogZ
from logitsieve.decoding.sampler import Draws
from logitsieve.heads.card import CardHead
from logitsieve.heads.card.exact import CardExact
from logitsieve.kernels.gpu.plans.nucleus import ListDraws
from logitsieve.types.requests import Sampling


def draws_there(head: CardHead, how: Sampling, normalizer: str) -> bool:
    """Whether the card can draw so: from a list that it finds, or from all by a head that can."""
    if how.top_k > 0:
        return head.fits(how.top_k)
    filtered = how.top_p < 1.0 or how.min_p > 0.0
    return not filtered and head.name in DRAWS and normalizer in ("", "exact", head.name)


def narrowed(how: Sampling, vocab_size: int) -> Sampling:
    """The same with a `top_k` where a temperature of 0 asks for one, and within the vocabulary."""
    return how._replace(top_k=min(how.top_k, vocab_size) if how.temperature else 1)


def sample(
    exact: CardExact, head: CardHead, hidden: Tensor, how: Sampling, normalizer: str
) -> Draws:
    """Draws for each row of hidden [B, D], where `draws_there`; `how.seeds` are a tensor."""
    if how.top_k > 0:
        return _from_lists(exact, head, hidden, how)
    return _from_all(exact, head, hidden, how, normalizer)


def _from_lists(exact: CardExact, head: CardHead, hidden: Tensor, how: Sampling) -> Draws:
    top = head.topk(hidden, how.top_k)
    scale = 1.0 / (how.temperature or 1.0)  # at 0 there is one id to choose from
    step = np.array([how.step], np.uint64).view(np.int64)
    plan = ListDraws(
        cast(Any, top.ids), exact.logits64(hidden, cast(Any, top.ids)), how.samples,
        cast(Any, how.seeds), there(step, hidden.device),
        there(np.array([scale, how.top_p, how.min_p]), hidden.device),
    )  # fmt: skip
    with head.launching():
        plan.run()
    found: Any = plan.drawn, plan.log_probs, top.exact, top.scanned
    more: Any = top.exact & (not head.proves), "candidates", _log_z(plan.log_z)
    return Draws(*found, *more)


def _from_all(
    exact: CardExact, head: CardHead, hidden: Tensor, how: Sampling, normalizer: str
) -> Draws:
    scale, drawing = 1.0 / how.temperature, cast(Any, head)
    ids, log_z, scanned = drawing.draw(hidden, how.samples, how.seeds, how.step, scale, None)
    found, value = DRAWS[head.name](log_z)
    if normalizer not in ("", head.name):
        value = exact.log_z(hidden, scale).double()
        found = _log_z(value.float())
    logits = exact.logits64(hidden, ids)
    # An estimate of log Z may lie below the logit of what was drawn, which log Z never does.
    log_probs = (logits * scale - value[:, None]).clamp(max=0.0).float()
    drawn = ids[:, 0] >= 0
    made: Any = ids, log_probs, drawn, scanned
    more: Any = torch.zeros_like(drawn), normalizer or head.name, found
    return Draws(*made, *more)


class _Found(NamedTuple):
    """log Z as it is told, and in float64."""

    told: LogZ
    value: Tensor  # [B]


def _log_z(value: Tensor | None, *bounds: Tensor) -> LogZ:
    return LogZ(*cast(Any, (value, *bounds)))


def _of_number(log_z: Tensor) -> _Found:
    """Of [B]."""
    return _Found(_log_z(log_z.float()), log_z)


def _of_interval(log_z: Tensor) -> _Found:
    """Of [B, 3]: an estimate and what it lies between, as `normalizers.interval` rounds them."""
    value, low, high = log_z.float().unbind(1)
    infinite = torch.full_like(low, torch.inf)
    low = torch.where(low > log_z[:, 1], torch.nextafter(low, -infinite), low)
    high = torch.where(high < log_z[:, 2], torch.nextafter(high, infinite), high)
    estimate = log_z[:, 0].clamp(log_z[:, 1], log_z[:, 2])
    return _Found(_log_z(value.clamp(low, high), low, high), estimate)


DRAWS: Mapping[str, Callable[[Tensor], _Found]] = {"exact": _of_number}
