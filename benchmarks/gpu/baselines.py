"""What a step costs without us: PyTorch's product and top k, in the ways that people write it.

Shape letters: B rows of hidden, V vocabulary, D hidden size, K answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.gpu.clock import Call, captured

BLOCKS = 64  # of the top k that is found by blocks first


class Step(NamedTuple):
    """One softmax, one batch."""

    weight: Tensor  # [V, D], float32 or bfloat16
    bias: Tensor  # [V] of that type
    hidden: Tensor  # [B, D] of that type
    k: int


def eager(step: Step) -> tuple[Tensor, Tensor]:
    """A product and torch.topk."""
    found = linear(step.hidden, step.weight, step.bias).topk(step.k)
    return found.values, found.indices


def in_blocks(step: Step) -> tuple[Tensor, Tensor]:
    """The best of each block of logits, then of those."""
    logits = linear(step.hidden, step.weight, step.bias)
    rows, size = logits.shape
    width = -(-size // BLOCKS)
    padded = torch.nn.functional.pad(logits, (0, BLOCKS * width - size), value=-torch.inf)
    first = padded.view(rows, BLOCKS, width).topk(min(step.k, width))
    starts = torch.arange(BLOCKS, device=logits.device)[:, None] * width
    values, names = first.values.flatten(1), (first.indices + starts).flatten(1)
    best = values.topk(step.k)
    return best.values, names.gather(1, best.indices)


def by_gumbel(step: Step) -> Tensor:
    """A draw by noise over all logits."""
    logits = linear(step.hidden, step.weight, step.bias).float()
    noise = -torch.empty_like(logits).exponential_().log()
    return (logits + noise).argmax(1)


def by_multinomial(step: Step) -> Tensor:
    """A draw by torch.multinomial from the softmax."""
    logits = linear(step.hidden, step.weight, step.bias).float()
    return torch.multinomial(logits.softmax(1), 1)


def searches(step: Step) -> Iterator[tuple[str, Call]]:
    """Every way to the k best, by name."""
    device = step.hidden.device
    yield "eager", lambda: eager(step)
    yield "graph", captured(lambda: eager(step), device)
    yield "graph, in blocks", captured(lambda: in_blocks(step), device)
    if device.type == "cuda":
        yield "compiled", _compiled(eager, step)
        yield "compiled, in blocks", _compiled(in_blocks, step)
        if find_spec("flashinfer") is not None:
            yield "flashinfer", captured(_flashinfer(step), device)


def draws(step: Step) -> Iterator[tuple[str, Call]]:
    """Every way to a draw, by name."""
    yield "multinomial", lambda: by_multinomial(step)
    yield "gumbel", lambda: by_gumbel(step)
    if step.hidden.device.type == "cuda":
        yield "compiled multinomial", _compiled(by_multinomial, step)
        yield "compiled gumbel", _compiled(by_gumbel, step)


def _compiled(function: Callable[[Step], object], step: Step) -> Call:
    made = torch.compile(function, mode="max-autotune")
    return lambda: made(step)


def _flashinfer(step: Step) -> Call:
    flashinfer = import_module("flashinfer")
    return lambda: flashinfer.top_k(linear(step.hidden, step.weight, step.bias), step.k)
