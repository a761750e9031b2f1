"""Find the exact best ids of every context, block by block."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Int32
from logitsieve.heads import Head
from logitsieve.index_builder.data.arrays import reserve
from logitsieve.index_builder.data.contexts import Contexts
from logitsieve.index_builder.fitting import BuildInputs
from logitsieve.index_builder.workers import Shared
from logitsieve.utils.environment import name_in_errors

LABEL_ROWS = 1024


def exact_labels(
    inputs: BuildInputs, head: Shared[Head], contexts: Contexts, depth: int, file: Path, stage: str
) -> np.ndarray:
    """Return [N, K] ids of the head's top `depth`, mapped; InvalidRequest names a context."""
    dtype = np.uint16 if inputs.vocab_size <= 1 << 16 else np.int32
    with name_in_errors(file):
        labels = np.lib.format.open_memmap(file, "w+", dtype, (contexts.rows, depth))
    reserve(file, labels, 0, contexts.rows)
    calls = ((head, block, depth) for block in contexts.blocks(LABEL_ROWS))
    results = inputs.workers.map(label_block, calls)
    for part in contexts.spans(LABEL_ROWS):
        try:
            labels[part] = next(results)
        except InvalidRequest as error:
            if (row := re.fullmatch(r"hidden\[(\d+)\]", error.field)) is None:
                raise
            field = f"{contexts.field}[{contexts.number(part.start + int(row[1]))}]"
            raise InvalidRequest(field, error.got, error.allowed) from error
        inputs.progress(stage, part.stop, contexts.rows)
    return labels


def label_block(exact: Head, block: Float32, depth: int) -> Int32:
    return exact.topk(block, depth).ids
