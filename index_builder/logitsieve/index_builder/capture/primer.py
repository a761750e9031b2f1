"""The primer: a short text of many kinds that gives a sketch its coordinates.

They come from second moments of contexts. A hundred contexts of a kind of text (a language, code,
dialogue) give nearly the moments of thousands; bounds for a missing kind are several times wider.

Shape letters: N contexts, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logitsieve.api.results import Float32
from logitsieve.utils.options import Progress, no_progress

if TYPE_CHECKING:
    from logitsieve.llamacpp import LlamaContext

SEPARATOR = "\n---\n"
LENGTH = 64  # tokens read of a passage: more hardly improve the basis
SKIPPED = 4  # its first places, too early to tell the kind of text


def primer() -> tuple[str, ...]:
    text = files(__package__).joinpath("primer.txt").read_text(encoding="utf-8")
    return tuple(text.removesuffix("\n").split(SEPARATOR))


def read_primer(context: LlamaContext, progress: Progress = no_progress) -> Float32:
    """Return contexts [N, D] of the primer by place in a passage: any run has all kinds of text."""
    length = min(LENGTH, context.trained_positions)
    stretches = [
        Stretch((context.begin + ids)[:length], SKIPPED)
        for ids in (context.tokenize(one, begin=False, special=False) for one in primer())
    ]
    rows = read_stretches(context, stretches, progress=progress, stage="read the primer")
    places = np.concatenate([np.arange(first, len(tokens)) for tokens, first in stretches])
    return rows[np.argsort(places, kind="stable")]


class Stretch(NamedTuple):
    """Token ids read from an empty cache; contexts count from place `first`."""

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
    """Return hidden states [N, D], or logits unless `headless`, from each `first` on.

    `progress` gets (`stage`, stretches read, all).
    """
    before, context.headless, rows = context.headless, headless, []
    for number, (tokens, first) in enumerate(stretches):
        context.forget()
        rows.append(context.read(tokens, every=True)[first:])
        progress(stage, number + 1, len(stretches))
    context.headless = before
    return np.concatenate(rows)
