"""The inputs and results of fits, the heads made of them, and the choice of operating points.

Shape letters: N contexts to fit on, H held-out contexts, S sampled contexts, D hidden size,
V vocabulary, K labels a context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from logitsieve.api.results import Float32, Int64
from logitsieve.evaluation.precision import Answering, Each
from logitsieve.heads import HEADS, Head, Softmax, make_heads
from logitsieve.heads._base.spec import Arrays
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.data.contexts import Contexts
from logitsieve.index_builder.workers import Shared, Workers
from logitsieve.utils.options import Progress, no_progress
from logitsieve.utils.stored import StoredMatrix

R = TypeVar("R")

COUNTED_ROWS = 1 << 16
TARGET = 0.99  # P@1 and P@5 that a stored operating point reaches on held-out contexts
JUDGED = 2048  # held-out contexts that choose it
DEPTH = 5
TIMINGS = 3  # of each head, in turn; the least counts, for load only ever adds


@dataclass(frozen=True, eq=False)
class FitResult:
    """A fitted head: its part, a summary for the manifest, and the operating point it is stored at.

    The summary is the same on every machine.
    """

    arrays: Arrays
    summary: Mapping[str, float]
    knobs: Mapping[str, float]

    def shared(self) -> FitResult:
        """The same arrays for another head, which adds nothing to the manifest's summary."""
        return FitResult(self.arrays, {}, {})


@dataclass(frozen=True, kw_only=True, eq=False)
class BuildInputs:
    """The softmax and the contexts of a build, checked, and its options.

    A build without contexts has none of either kind.
    """

    softmax: Softmax
    train: Contexts
    heldout: Contexts
    config: BuildConfig = field(default_factory=BuildConfig)
    target: Mapping[str, float] | None = None  # precisions that a screen must reach
    unseen: bool = True  # `heldout` was given; else it is the end of the text that is fitted
    best_effort: bool = False  # the nearest screen will do
    progress: Progress = no_progress
    workers: Workers = field(default_factory=Workers)

    @property
    def vocab_size(self) -> int:
        """V, the number of rows of W."""
        return self.softmax.vocab_size


@dataclass(frozen=True, kw_only=True, eq=False)
class FitInputs(BuildInputs):
    """The labels and the sample to fit to, and the heads fitted before.

    Labels come best first, and lie in mapped files of as few bytes as ids need.
    """

    labels: np.ndarray  # [N, K]
    heldout_labels: np.ndarray  # [H, K or more]
    sample: Float32  # [S, D]
    sample_rows: Int64  # [S] numbers of the sampled contexts
    fitted: Mapping[str, FitResult] = field(default_factory=dict)
    fallback: str = ""  # the head that answers what others leave; "": the last that proves


def part_name(head: str) -> str:
    """The name of the part that holds the arrays of `head`."""
    part = HEADS[head].part
    assert part is not None, f"{head} has no arrays to fit"
    return part.name


def heads_of(
    softmax: Softmax, fitted: Mapping[str, FitResult], threads: int = 1, fallback: str = ""
) -> dict[str, Head]:
    """Make `exact` and the fitted heads at their operating points; earlier ones are fallbacks."""
    parts = {part_name(name): result.arrays for name, result in fitted.items()}
    knobs = {name: result.knobs for name, result in fitted.items()}
    return dict(make_heads(HEADS, softmax, parts, knobs, threads, fallback))


def shared_head(
    name: str,
    head: Head,
    softmax: Softmax,
    fitted: Mapping[str, FitResult] = MappingProxyType({}),
    fallback: str = "",
) -> Shared[Head]:
    """Share the head `name` of `heads_of(softmax, fitted, fallback=fallback)` with workers."""
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
    """Let `workers` make the calls of evaluation/precision.py for these heads."""
    known = {id(each.value): each for each in shared}

    def each(
        call: Callable[..., R], head: Answering, blocks: Iterable[tuple[Any, ...]]
    ) -> Iterator[R]:
        return workers.map(call, ((known[id(head)], *block) for block in blocks))

    return each


def fastest_proving(heads: Mapping[str, Head], us: Callable[[Head], float]) -> str:
    """Return the name of the fastest proving head, which answers what others leave.

    Bounds pay where some logits stand out. Where the softmax is flat, they leave nearly all rows to
    be computed, and `exact` is faster. Each is timed TIMINGS times in turn; the least counts.
    """
    proving = {name: head for name, head in heads.items() if head.proves}
    times = dict.fromkeys(proving, math.inf)
    for _ in range(TIMINGS):
        times = {name: min(least, us(proving[name])) for name, least in times.items()}
    return min(times, key=times.__getitem__)


def sample_rows(rows: int, most: int, seed: int) -> Int64:
    """int64 [S], ascending: all rows, or one drawn from each of `most` equal cells.

    Drawn at random: every n-th row of sequences of one length could be one position of all.
    """
    most = max(1, most)
    if rows <= most:
        return np.arange(rows, dtype=np.int64)
    jitter = np.random.default_rng(seed).random(most)
    return np.minimum((np.arange(most) + jitter) * (rows / most), rows - 1).astype(np.int64)


def label_counts(inputs: FitInputs) -> Int64:
    """int64 [V]: the contexts that have each id among their DEPTH best."""
    counts_V = np.zeros(inputs.vocab_size, np.int64)
    for start in range(0, len(inputs.labels), COUNTED_ROWS):
        labels = inputs.labels[start : start + COUNTED_ROWS, :DEPTH].ravel()
        counts_V += np.bincount(labels, minlength=inputs.vocab_size)
    return counts_V


def heldout_sample(inputs: FitInputs) -> tuple[Float32, Int64]:
    """(hidden [H, D], labels [H, K]): held-out contexts at equal distances, best labels first."""
    rows = inputs.heldout.rows
    count = min(JUDGED, rows)
    taken = np.arange(count) * rows // count
    labels = inputs.heldout_labels[taken, :DEPTH].astype(np.int64)
    return inputs.heldout.sample(count), labels


def least_reaching(needed_HK: np.ndarray, target: float = TARGET) -> int:
    """The least n at which `target` of the labels, and of the best ones alone, are found.

    Label j of context h is found by settings from needed_HK[h, j] on.
    """
    values = (np.sort(needed, axis=None) for needed in (needed_HK[:, 0], needed_HK))
    return max(int(each[int(np.ceil(target * each.size)) - 1]) for each in values)
