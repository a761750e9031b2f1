"""The output layer of a GGUF file as what `build` takes: its matrix, its bias, its vocabulary."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike

SUFFIX = ".gguf"
BREAKS = str.maketrans({"\n": "\\n", "\r": "\\r"})  # a vocabulary has a word a line

logger = logging.getLogger(__name__)


class OutputLayer(NamedTuple):
    """Arguments of `build`."""

    weight: Any
    bias: ArrayLike | None
    vocabulary: Sequence[str] | None


def gguf_output_layer(
    weight: Path | str, bias: ArrayLike | None, vocabulary: Sequence[str] | None
) -> OutputLayer:
    """The layer of the file `weight`, and its tokens as words unless a `vocabulary` is given.

    InvalidRequest names `weight` where the file cannot be used, and a `bias` beside it.
    """
    from logitsieve.llamacpp.model_file import FLOATS, GgufModel  # loads numba

    if bias is not None:
        raise InvalidRequest("bias", "one", "none beside a GGUF file, which holds the model's own")
    gguf = GgufModel(weight, "weight")
    if gguf.matrix.kind not in FLOATS:
        logger.warning(
            "%s: %s is %s; the index stores its values in float32",
            gguf.path,
            gguf.matrix.name,
            gguf.matrix.kind,
        )
    if vocabulary is None and gguf.vocabulary and len(gguf.vocabulary) == gguf.vocab_size:
        vocabulary = [word.translate(BREAKS) for word in gguf.vocabulary]
    return OutputLayer(gguf.matrix.dense(), gguf.bias, vocabulary)


def is_gguf(weight: Any) -> bool:
    """True for the name of a GGUF file."""
    return isinstance(weight, str | Path) and str(weight).endswith(SUFFIX)
