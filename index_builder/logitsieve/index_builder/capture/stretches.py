"""Stretches of text that a GGUF model reads, each from an empty cache.

Shape letters: N contexts, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logitsieve.api.results import Float32
from logitsieve.utils.options import Progress, no_progress

if TYPE_CHECKING:
    from logitsieve.llamacpp import LlamaContext


class Stretch(NamedTuple):
    """Token ids that are read from an empty cache; contexts are of the places from `first` on."""

    tokens: list[int]
    first: int


def read_stretches(
    context: LlamaContext,
    stretches: Sequence[Stretch],
    *,
    headless: bool = True,
    progress: Progress = no_progress,
    stage: str = "read",
) -> Float32:
    """[N, D]: hidden states, or logits unless `headless`, after the tokens of each stretch.

    They are those from its `first` place on. `progress` gets (`stage`, stretches read, all).
    """
    before, context.headless, rows = context.headless, headless, []
    for number, (tokens, first) in enumerate(stretches):
        context.forget()
        rows.append(context.read(tokens, every=True)[first:])
        progress(stage, number + 1, len(stretches))
    context.headless = before
    return np.concatenate(rows)
