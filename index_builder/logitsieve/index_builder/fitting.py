import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import thread_time_ns
from typing import Any, NamedTuple, TypeVar

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64
from logitsieve.evaluation import us_per_row
from logitsieve.evaluation.precision import Each, Judged, in_turn, lower_bound
from logitsieve.evaluation.timing import TIMED_K
from logitsieve.heads import HEADS, Head, Softmax, make_heads
from logitsieve.heads._base.spec import Arrays
from logitsieve.heads.sketch import GRADES
from logitsieve.index_builder.arrays import reserve
from logitsieve.index_builder.calibrate import TIMED_ROWS
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.contexts import Contexts
from logitsieve.index_builder.workers import Shared, Workers
from logitsieve.utils.environment import name_in_errors
from logitsieve.utils.options import Progress, no_progress
from logitsieve.utils.stored import StoredMatrix

R = TypeVar("R")
Choice = TypeVar("Choice", bound=Hashable)
Bound = Callable[[Float64], float]
"""Returns a lower bound of the precision, given the share that is right in each row [H]."""

COUNTED_ROWS = 1 << 16
TARGET = 0.99
JUDGED = 2048
LABEL_ROWS = 1024
FULL, SKETCH, SVD = "full", "sketch", "svd"
DEPTH = 5
SCATTERED = 2  # cost of a byte at a random place, relative to one in order
NEAR = 0.15  # a smaller relative difference in bytes is decided by time
MORE_MISSES = 2.0  # on unseen text, relative to text that the model was trained on
TIMINGS = 5  # of each choice, in turn; the shortest counts, since load only adds time


@dataclass(frozen=True, eq=False)
class FitResult:
    arrays: Arrays
    summary: Mapping[str, float]
    knobs: Mapping[str, float]


class Trial(NamedTuple):
    hidden_states: Float32
    k: int

    def us(self, head: Head) -> float:
        return us_per_row(head, self.hidden_states, self.k, batch=1, clock=thread_time_ns)

    def scanned(self, head: Head) -> float:
        return float(head.topk(self.hidden_states, self.k).scanned.mean())


@dataclass(frozen=True, kw_only=True, eq=False)
class BuildInputs:
    """The checked arguments of a build; contexts may be empty."""

    softmax: Softmax
    train: Contexts
    heldout: Contexts
    config: BuildConfig = field(default_factory=BuildConfig)
    target: Mapping[str, float] | None = None
    named: bool = True  # the user named the heads; otherwise heads that do not pay are left out
    unseen: bool = True  # `heldout` was given; otherwise it is the end of the fitted text
    texts: Sequence[slice] = (slice(None),)  # of `heldout`
    best_effort: bool = False
    progress: Progress = no_progress
    workers: Workers = field(default_factory=Workers)

    @property
    def vocab_size(self) -> int:
        return self.softmax.vocab_size

    @property
    def bound(self) -> Bound:
        """The bound that must meet a target: that of the worst text."""
        bound = bound_of(self.unseen)
        return lambda share_H: min(bound(share_H[text]) for text in self.texts)

    @cached_property
    def trial(self) -> Trial:
        return Trial(self.heldout.sample(TIMED_ROWS), min(TIMED_K, self.vocab_size))


@dataclass(frozen=True, kw_only=True, eq=False)
class FitInputs(BuildInputs):
    """Adds labels, best first, a sample of the contexts, and the heads fitted so far."""

    labels: np.ndarray  # [N, K]
    heldout_labels: np.ndarray  # [H, K or more]
    sample: Float32  # [S, D]
    sample_rows: Int64  # [S] numbers of the sampled contexts
    fitted: Mapping[str, FitResult] = field(default_factory=dict)
    fallback: str = FULL
    rest: Bool | None = None  # [H, K] whether the fallback finds the label; None: always


def bound_of(unseen: bool) -> Bound:
    return lower_bound if unseen else same_text_bound


def same_text_bound(share_H: Float64) -> float:
    """Return a lower 95 % bound if the model was trained on this text (docs/building.md)."""
    return max(0.0, 1 - MORE_MISSES * (1 - lower_bound(share_H)))


def part_name(head: str) -> str:
    part = HEADS[head].part
    assert part is not None, f"{head} has no arrays to fit"
    return part.name


def heads_of(
    softmax: Softmax, fitted: Mapping[str, FitResult], fallback: str = ""
) -> dict[str, Head]:
    parts = {part_name(name): result.arrays for name, result in fitted.items()}
    knobs = {name: result.knobs for name, result in fitted.items()}
    return make_heads(HEADS, softmax, parts, knobs, 1, fallback)


def shared_heads(
    softmax: Softmax, fitted: Mapping[str, FitResult], fallback: str = ""
) -> dict[str, Shared[Head]]:
    parts = {part_name(each): result.arrays for each, result in fitted.items()}
    layout = tuple((part, key) for part, arrays in parts.items() for key in arrays)
    arrays = softmax.stored, softmax.bias, *(parts[part][key] for part, key in layout)
    knobs = {each: dict(result.knobs) for each, result in fitted.items()}
    options = softmax.matrix.kind, layout, knobs, fallback
    heads = heads_of(softmax, fitted, fallback)
    return {
        name: Shared(head, _make_head, arrays, (name, *options)) for name, head in heads.items()
    }


def at_grades(softmax: Softmax, fitted: Mapping[str, FitResult]) -> list[Shared[Head]]:
    """Return the head `sketch`, if it is fitted, at each of its GRADES."""
    if SKETCH not in fitted:
        return []
    at = (replace(fitted[SKETCH], knobs={"max_error": grade}) for grade in GRADES)
    graded = [shared_heads(softmax, {SKETCH: one})[SKETCH] for one in at]
    return list({one.value.max_error: one for one in graded}.values())


def _make_head(stored: np.ndarray, bias: Float32, *rest: Any) -> Head:
    *arrays, name, kind, layout, knobs, fallback = rest
    parts: dict[str, dict[str, np.ndarray]] = {}
    for (part, key), array in zip(layout, arrays, strict=True):
        parts.setdefault(part, {})[key] = array
    softmax = Softmax(StoredMatrix(kind, stored), bias)
    return make_heads(HEADS, softmax, parts, knobs, 1, fallback)[name]


def each_by(workers: Workers, heads: Iterable[Shared[Head]]) -> Each:
    """Return a function that runs calls of `heads` on the workers, and others in this thread."""
    known = {id(each.value): each for each in heads}

    def each(
        call: Callable[..., R], head: Judged, blocks: Iterable[tuple[Any, ...]]
    ) -> Iterator[R]:
        if (shared := known.get(id(head))) is None:
            return in_turn(call, head, blocks)
        return workers.map(call, ((shared, *block) for block in blocks))

    return each


def cheapest(read: Mapping[Choice, float], us: Callable[[Choice], float] | None = None) -> Choice:
    """Return the choice with the fewest bytes read; with `us`, the fastest of those NEAR it."""
    least = min(read.values())
    near = [choice for choice, number in read.items() if number <= (1 + NEAR) * least]
    if len(near) == 1 or us is None:
        return min(read, key=read.__getitem__)
    return fastest(near, us)


def fastest(choices: Iterable[Choice], us: Callable[[Choice], float]) -> Choice:
    times = dict.fromkeys(choices, math.inf)
    for _ in range(TIMINGS):
        times = {choice: min(time, us(choice)) for choice, time in times.items()}
    return min(times, key=times.__getitem__)


def bytes_read(inputs: BuildInputs, fitted: Mapping[str, FitResult], name: str) -> float:
    row = inputs.softmax.matrix.row_bytes
    if name == FULL:
        return float(inputs.vocab_size * row)
    arrays, head = fitted[name].arrays, heads_of(inputs.softmax, fitted)[name]
    scanned = inputs.trial.scanned(head)
    if name == SVD:
        swept = 4 * head.knobs["width"] * (inputs.vocab_size + inputs.softmax.dim)
        return float(swept + SCATTERED * scanned * row)
    swept = arrays["directions"].nbytes + arrays["coarse"].nbytes
    return float(swept + SCATTERED * scanned * (row + arrays["fine"].shape[1]))


def sample_rows(rows: int, most: int, seed: int) -> Int64:
    """Return all rows, or one drawn from each of `most` equal cells; [S], ascending."""
    most = max(1, most)
    if rows <= most:
        return np.arange(rows, dtype=np.int64)
    jitter = np.random.default_rng(seed).random(most)
    return np.minimum((np.arange(most) + jitter) * (rows / most), rows - 1).astype(np.int64)


def label_counts(inputs: FitInputs) -> Int64:
    counts_V = np.zeros(inputs.vocab_size, np.int64)
    for start in range(0, len(inputs.labels), COUNTED_ROWS):
        labels = inputs.labels[start : start + COUNTED_ROWS, :DEPTH].ravel()
        counts_V += np.bincount(labels, minlength=inputs.vocab_size)
    return counts_V


def heldout_sample(inputs: FitInputs) -> tuple[Float32, Int64]:
    rows = inputs.heldout.rows
    count = min(JUDGED, rows)
    taken = np.arange(count) * rows // count
    labels = inputs.heldout_labels[taken, :DEPTH].astype(np.int64)
    return inputs.heldout.sample(count), labels


def least_reaching(needed_HK: np.ndarray, target: float = TARGET) -> int:
    """Return the least n that suffices for `target` of all labels, and of the best ones alone."""
    values = (np.sort(needed, axis=None) for needed in (needed_HK[:, 0], needed_HK))
    return max(int(each[int(np.ceil(target * each.size)) - 1]) for each in values)


def exact_labels(
    inputs: BuildInputs, head: Shared[Head], contexts: Contexts, depth: int, file: Path, stage: str
) -> np.ndarray:
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
            if (row := re.fullmatch(r"hidden_states\[(\d+)\]", error.field)) is None:
                raise
            field = f"{contexts.field}[{contexts.number(part.start + int(row[1]))}]"
            raise InvalidRequest(field, error.got, error.allowed) from error
        inputs.progress(stage, part.stop, contexts.rows)
    return labels


def label_block(full: Head, block: Float32, depth: int) -> Int32:
    return full.topk(block, depth).ids
