"""The primer: a short text of many kinds, for a basis of contexts that no kind is missing from.

A sketch chooses its coordinates from second moments of contexts. A hundred contexts of a kind of
text (a language, code, dialogue) give nearly the moments of thousands, but the bounds of a kind
that is missing are several times wider.

Shape letters: N contexts, D hidden size.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from logitsieve.api.results import Float32
from logitsieve.index_builder.capture.stretches import Stretch, read_stretches
from logitsieve.utils.options import Progress, no_progress

if TYPE_CHECKING:
    from logitsieve.llamacpp import LlamaContext

SEPARATOR = "\n---\n"
LENGTH = 160  # tokens of a passage that are read
SKIPPED = 4  # places at its beginning, too early to tell what the text is


def primer() -> tuple[str, ...]:
    """The passages, each of another kind of text."""
    text = files(__package__).joinpath("primer.txt").read_text(encoding="utf-8")
    return tuple(text.removesuffix("\n").split(SEPARATOR))


def read_primer(context: LlamaContext, progress: Progress = no_progress) -> Float32:
    """Contexts [N, D] of the primer, each passage read from an empty cache.

    They are in the order of their places in the passages: all kinds of text are in any long run of
    them, so also in the last tenth, which `build` holds out.
    """
    length = min(LENGTH, context.trained_positions)
    stretches = [
        Stretch((context.begin + ids)[:length], SKIPPED)
        for ids in (context.tokenize(one, begin=False, special=False) for one in primer())
    ]
    rows = read_stretches(context, stretches, progress=progress, stage="read the primer")
    places = np.concatenate([np.arange(first, len(tokens)) for tokens, first in stretches])
    return rows[np.argsort(places, kind="stable")]
