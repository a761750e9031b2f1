"""Tensors on a card, answered in tensors there, so that a decoding step never waits for the host.

`log_z` of all logits is the one normalizer there is on a card; constraints are met on the host.

Shape letters: B batch rows, D hidden size, K answers.
"""

from __future__ import annotations

import sys
from time import perf_counter_ns
from typing import Any, cast

from logitsieve.decoding.normalizers import LogZ
from logitsieve.decoding.point import Point
from logitsieve.heads.exact import ExactHead
from logitsieve.index import Index
from logitsieve.types.constraints import Constraints
from logitsieve.types.errors import InvalidRequest
from logitsieve.types.results import Float32, TopKReply

BY_ROW = ("exact", "scanned", "fallback", "log_z", "log_z_low", "log_z_high", "log_z_error")


def is_tensor(value: Any) -> bool:
    """Whether it is PyTorch's, which is not imported for this."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def on_host(hidden: Any) -> Float32:
    """A tensor's values in an array, which is waited for."""
    values: Float32 = hidden.detach().float().cpu().numpy()
    return values


def tensor_topk(
    point: Point, index: Index, hidden: Any, k: int, constraints: Constraints | None
) -> TopKReply:
    """The reply to hidden [B, D] or [D] on the card, in tensors there.

    A row that cannot be answered has ids of -1, logits of NaN and exact False. InvalidRequest for
    another normalizer than "exact".
    """
    if constraints is not None:
        return _constrained(point, hidden, k, constraints)
    started, log_z = perf_counter_ns(), None
    if point.normalizer not in ("", "exact"):
        raise InvalidRequest("normalizer", point.normalizer, "exact, or none, for a tensor")
    top = point.answering.topk(hidden, k)
    if point.normalizer:
        log_z = LogZ(cast(ExactHead, index.head("exact")).log_z(hidden, 1.0))
    fallback = top.exact & (not point.proves)
    answer = point.answer(started, top.exact, top.scanned, fallback, point.normalizer, log_z)
    return TopKReply(top.ids, top.logits, answer)


def _constrained(point: Point, hidden: Any, k: int, constraints: Constraints) -> TopKReply:
    """By way of the host, which it waits for."""
    as_tensor = sys.modules["torch"].as_tensor
    reply = point.topk(on_host(hidden), k, constraints)

    def there(array: Any) -> Any:
        return None if array is None else as_tensor(array).to(hidden.device)

    answer = reply.answer
    found = {
        name: there(getattr(answer, name))
        for name in (
            "exact",
            "scanned",
            "fallback",
            "log_z",
            "log_z_low",
            "log_z_high",
            "log_z_error",
        )
    }
    return TopKReply(there(reply.ids), there(reply.logits), answer._replace(**found))
