"""What every fit starts from: the contexts, their exact labels, and an evenly spread sample.

Shape letters: N contexts to fit on, H held-out contexts, S sampled contexts, D hidden size,
V vocabulary, K labels a context.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike, Float32, Int64, TopK
from logitsieve.heads import Softmax
from logitsieve.index_builder.arrays import reserve
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.contexts import Contexts
from logitsieve.utils.files import name_in_errors
from logitsieve.utils.options import Progress

EVALUATED = 10  # held-out precision is judged at up to so many answers
LABEL_ROWS = 1024  # rows answered by the exact head at once


class TopKHead(Protocol):
    """What labels are made with: the exact head."""

    def topk(self, hidden: ArrayLike, k: int) -> TopK:
        """The k best ids of each row."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class FitInputs:
    """The softmax, contexts and labels, best first; labels lie in mapped files, as few bytes."""

    softmax: Softmax
    train: Contexts
    labels: np.ndarray  # [N, K]
    heldout: Contexts
    heldout_labels: np.ndarray  # [H, K or more]
    sample: Float32  # [S, D]
    sample_rows: Int64  # [S] which contexts the sample holds

    @property
    def dim(self) -> int:
        """D."""
        return self.train.dim

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.softmax.vocab_size


def prepare(
    exact: TopKHead,
    softmax: Softmax,
    train: Contexts,
    heldout: Contexts,
    depth: int,
    config: BuildConfig,
    scratch: Path,
    progress: Progress,
) -> FitInputs:
    """Label every context with its exact top `depth`, and draw the sample that fits in memory."""
    vocab_size = softmax.vocab_size
    depth = min(depth, vocab_size)
    judged = min(max(depth, EVALUATED), vocab_size)
    rows_S = sample_rows(train.rows, (config.sample_mib << 20) // (4 * train.dim), config.seed)
    return FitInputs(
        softmax=softmax,
        train=train,
        labels=exact_labels(
            exact, train, vocab_size, depth, scratch / "labels-fitted.npy", "label", progress
        ),
        heldout=heldout,
        heldout_labels=exact_labels(
            exact,
            heldout,
            vocab_size,
            judged,
            scratch / "labels-heldout.npy",
            "label held-out",
            progress,
        ),
        sample=train.take(rows_S),
        sample_rows=rows_S,
    )


def exact_labels(
    exact: TopKHead,
    contexts: Contexts,
    vocab_size: int,
    depth: int,
    file: Path,
    stage: str,
    progress: Progress,
) -> np.ndarray:
    """[N, depth] ids of the exact top `depth`, best first, in a mapped file."""
    dtype = np.uint16 if vocab_size <= 1 << 16 else np.int32
    with name_in_errors(file):
        labels = np.lib.format.open_memmap(file, "w+", dtype, (contexts.rows, depth))
    reserve(file, labels, 0, contexts.rows)
    done = 0
    for block in contexts.blocks(LABEL_ROWS):
        try:
            labels[done : done + len(block)] = exact.topk(block, depth).ids
        except InvalidRequest as error:
            raise _of_contexts(error, contexts, done) from error
        done += len(block)
        progress(stage, done, contexts.rows)
    return labels


def _of_contexts(error: InvalidRequest, contexts: Contexts, done: int) -> InvalidRequest:
    """The head's `hidden[row]`, a row of a block, as the user knows it."""
    row = re.fullmatch(r"hidden\[(\d+)\]", error.field)
    if row is None:
        return error
    number = contexts.number(done + int(row[1]))
    return InvalidRequest(f"{contexts.field}[{number}]", error.got, error.allowed)


def sample_rows(rows: int, most: int, seed: int) -> Int64:
    """int64 [S], ascending: all rows, or one drawn from each of `most` equal cells.

    Drawn, because every n-th row of sequences of one length would be one position of theirs.
    """
    most = max(1, most)
    if rows <= most:
        return np.arange(rows, dtype=np.int64)
    jitter = np.random.default_rng(seed).random(most)
    return np.minimum((np.arange(most) + jitter) * (rows / most), rows - 1).astype(np.int64)
