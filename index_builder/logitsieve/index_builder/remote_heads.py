"""Heads that answer in other processes: made there from the arrays of their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from logitsieve.api.results import Float32
from logitsieve.evaluation.precision import Answering, Each
from logitsieve.heads import HEADS, Head, Softmax, make_heads
from logitsieve.index_builder.fitting import FitResult, part_name
from logitsieve.index_builder.workers import Shared, Workers
from logitsieve.utils.stored import StoredMatrix

R = TypeVar("R")


def shared_head(
    name: str,
    head: Head,
    softmax: Softmax,
    fitted: Mapping[str, FitResult] = MappingProxyType({}),
    fallback: str = "",
) -> Shared[Head]:
    """The `head` of this name among those of `heads_of(softmax, fitted, fallback=fallback)`."""
    parts = {part_name(each): result.arrays for each, result in fitted.items()}
    layout = tuple((part, key) for part, arrays in parts.items() for key in arrays)
    arrays = softmax.stored, softmax.bias, *(parts[part][key] for part, key in layout)
    knobs = {each: dict(result.knobs) for each, result in fitted.items()}
    options = name, softmax.matrix.kind, layout, knobs, fallback
    return Shared(head, _make_head, arrays, options)


def _make_head(stored: np.ndarray, bias: Float32, *rest: Any) -> Head:
    *arrays, name, kind, layout, knobs, fallback = rest
    parts: dict[str, dict[str, np.ndarray]] = {}
    for (part, key), array in zip(layout, arrays, strict=True):
        parts.setdefault(part, {})[key] = array
    softmax = Softmax(StoredMatrix(kind, stored), bias)
    return make_heads(HEADS, softmax, parts, knobs, 1, fallback)[name]


def each_by(workers: Workers, shared: Iterable[Shared[Head]]) -> Each:
    """Calls of evaluation/precision.py for these heads, made by `workers`."""
    known = {id(each.value): each for each in shared}

    def each(
        call: Callable[..., R], head: Answering, blocks: Iterable[tuple[Any, ...]]
    ) -> Iterator[R]:
        return workers.map(call, ((known[id(head)], *block) for block in blocks))

    return each
