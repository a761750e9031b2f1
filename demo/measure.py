"""Precision and speed of each head: in process, in the server, and over gRPC.

Shape letters: N contexts, D hidden size.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter_ns

from demo.decode import HEADS
from logitsieve.api.decoder import Decoder
from logitsieve.api.results import Float32
from logitsieve.evaluation import Evaluation, Judge, us_per_row
from logitsieve.index import Index
from logitsieve.utils.options import Progress

KS = (1, 5)
TIMED_K = 5
BLOCK = 1024  # rows answered at once, and rows that are timed
LOCAL_CALLS = 2000  # at most: `us_per_row` stops after half a second
REMOTE_CALLS = 300
WARM_UP = 20  # calls that are not counted


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Times of single-row calls, in microseconds."""

    softmax: float  # `head.topk` in process
    compute: float  # the same inside the server, as it reports it
    step: float  # the whole call as the client sees it


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Measurements of `index`: speed of each of HEADS, precision of those after `full`."""

    index: Index
    precision: Mapping[str, Evaluation]
    speed: Mapping[str, Speed]


def measure(
    index: Index, decoder: Decoder, label: str, hidden_ND: Float32, progress: Progress
) -> Numbers:
    """Measure all heads of `index`, in process and as `label` of a remote `decoder`."""
    speed = {}
    for done, name in enumerate(HEADS, start=1):
        speed[name] = _speed(index, decoder, label, name, hidden_ND[:BLOCK])
        progress("time", done, len(HEADS))

    def blocks() -> Iterator[Float32]:
        for start in range(0, len(hidden_ND), BLOCK):
            yield hidden_ND[start : start + BLOCK]

    full, *others = HEADS
    judge, precision = Judge(index.head(full), blocks, KS), {}
    for done, name in enumerate(others, start=1):
        precision[name] = judge.evaluate(index.head(name))
        progress("judge", done, len(others))
    return Numbers(index=index, precision=precision, speed=speed)


def _speed(index: Index, decoder: Decoder, label: str, head: str, hidden_ND: Float32) -> Speed:
    compute, step = [], []
    for call in range(WARM_UP + REMOTE_CALLS):
        start = perf_counter_ns()
        reply = decoder.topk(hidden_ND[call % len(hidden_ND)], TIMED_K, model=label, head=head)
        step.append(perf_counter_ns() - start)
        compute.append(reply.answer.compute_ns)
    return Speed(
        softmax=us_per_row(index.head(head), hidden_ND, TIMED_K, 1, LOCAL_CALLS),
        compute=statistics.median(compute[WARM_UP:]) / 1000,
        step=statistics.median(step[WARM_UP:]) / 1000,
    )
