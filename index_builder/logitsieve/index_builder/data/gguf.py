"""The output layer of a GGUF file as arguments of `build`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike
from logitsieve.utils.stored import KINDS, StoredMatrix

SUFFIX = ".gguf"
BREAKS = str.maketrans({"\n": "\\n", "\r": "\\r"})  # a vocabulary has a word a line

logger = logging.getLogger(__name__)


class OutputLayer(NamedTuple):
    weight: ArrayLike | StoredMatrix
    bias: ArrayLike | None
    vocabulary: Sequence[str] | None


def gguf_output_layer(
    path: Path | str, bias: ArrayLike | None, vocabulary: Sequence[str] | None
) -> OutputLayer:
    """Read the layer of a GGUF file, with its tokens as words unless a `vocabulary` is given.

    The matrix is mapped as stored, or float32 if the index has no such rows. InvalidRequest names
    `weight` if the file cannot be used, and `bias` if one is given.
    """
    from logitsieve.llamacpp.model_file import GgufModel  # loads numba

    if bias is not None:
        raise InvalidRequest("bias", "one", "none beside a GGUF file, which holds the model's own")
    gguf = GgufModel(path, "weight")
    matrix = gguf.matrix
    weight: ArrayLike | StoredMatrix
    if matrix.kind in KINDS:
        weight = StoredMatrix(matrix.kind, matrix.blocks)
    else:
        logger.warning(
            "%s: %s is %s; the index stores its values in float32", path, matrix.name, matrix.kind
        )
        weight = matrix.dense()
    if vocabulary is None and gguf.vocabulary and len(gguf.vocabulary) == gguf.vocab_size:
        vocabulary = [word.translate(BREAKS) for word in gguf.vocabulary]
    return OutputLayer(weight, gguf.bias, vocabulary)


def is_gguf(weight: Any) -> TypeGuard[str | Path]:
    return isinstance(weight, str | Path) and str(weight).endswith(SUFFIX)
