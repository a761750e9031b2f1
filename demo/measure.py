"""How right and how fast each head is: in process, in the server, and over gRPC.

Shape letters: N contexts, D hidden size.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter_ns

from logitsieve.api.decoder import Decoder
from logitsieve.api.results import Float32
from logitsieve.evaluation import Evaluation, evaluate, us_per_row
from logitsieve.index import Index

KS = (1, 5)
TIMED_K = 5
BLOCK = 1024  # rows answered at once, and rows that are timed
LOCAL_CALLS = 2000  # at most: `us_per_row` stops after half a second
REMOTE_CALLS = 300
WARM_UP = 20  # calls that are not counted


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Medians over single-row calls, in microseconds."""

    softmax: float  # `head.topk` in process
    compute: float  # the same inside the server, as it says itself
    step: float  # the whole call as the client sees it


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What was measured of `index`: `screen` as judged by the exact head, the speed by head."""

    index: Index
    screen: Evaluation
    speed: Mapping[str, Speed]


def measure(index: Index, decoder: Decoder, label: str, hidden_ND: Float32) -> Numbers:
    """Both heads of `index`, in process and as `label` of a remote `decoder`."""
    blocks = (hidden_ND[start : start + BLOCK] for start in range(0, len(hidden_ND), BLOCK))
    return Numbers(
        index=index,
        screen=evaluate(index.head("screen"), index.head("exact"), blocks, KS),
        speed={
            name: _speed(index, decoder, label, name, hidden_ND[:BLOCK]) for name in index.heads
        },
    )


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
