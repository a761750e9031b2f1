"""Heads on a card over the arrays of tests/synthetic.py."""

from __future__ import annotations

from logitsieve.gpu.heads import CardHead, card_heads, device_named
from logitsieve.heads import HEADS, Softmax
from tests.synthetic import ARRAYS


def make_card_heads(softmax: Softmax, knobs: dict[str, dict[str, float]]) -> dict[str, CardHead]:
    """Those that `knobs` names."""
    kinds = {name: HEADS[name].part for name in knobs}
    parts = {part.name: ARRAYS[name](softmax) for name, part in kinds.items() if part}
    return card_heads(HEADS, softmax, parts, knobs, 1, device_named("cuda"))


def make_card_head(name: str, softmax: Softmax, threads: int = 1, **knobs: float) -> CardHead:
    """As `make_head`; `threads` are the host's affair."""
    return make_card_heads(softmax, {"exact": {}, name: knobs})[name]
