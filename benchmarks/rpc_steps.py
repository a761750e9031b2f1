"""Steps of a decoder over gRPC: by calls of their own beside those on a stream, and in process.

Through the client, as a decoder takes them: one row of TopK, and beam steps of 5 hypotheses for 1
and 32 sentences. `python -m benchmarks.rpc` runs it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np

from logitsieve.api.decoder import Decoder
from logitsieve.client import DecoderClient
from logitsieve.decoding import LocalDecoder
from logitsieve.index import Index

CALLS, WARM_CALLS, RUNS = 400, 50, 5
K = 5
BEAMS, SENTENCES = 5, (1, 32)

Step = Callable[[Decoder, np.ndarray], Any]


def top_k(decoder: Decoder, hidden: np.ndarray) -> Any:
    """The best of each row."""
    return decoder.topk(hidden, K)


def beam_step(decoder: Decoder, hidden: np.ndarray) -> Any:
    """One step in the middle of a search."""
    return decoder.beam_step(hidden, beams_in=BEAMS, beams_out=BEAMS)


def steps(index: Index, address: str, contexts: np.ndarray) -> list[dict[str, Any]]:
    """Each kind of step in process, by calls of their own, and on a stream."""
    kinds: list[tuple[Step, int]] = [(top_k, 1)]
    kinds += [(beam_step, BEAMS * sentences) for sentences in SENTENCES]
    with DecoderClient(address, timeout_s=60) as client, client.stream() as stream:
        decoders = {"in process": LocalDecoder(index), "unary": client, "stream": stream}
        return [step_times(decoders, step, contexts, rows) for step, rows in kinds]


def step_times(
    decoders: dict[str, Any], step: Step, contexts: np.ndarray, rows: int
) -> dict[str, Any]:
    """p50 and p99 in microseconds, and stream / unary of alternating runs."""
    runs: dict[str, list[np.ndarray]] = {name: [] for name in decoders}
    for _ in range(RUNS):
        for name, decoder in decoders.items():
            runs[name].append(step_latencies(decoder, step, contexts, rows))
    return {
        "step": step.__name__,
        "rows": rows,
        "us": {name: percentiles(found) for name, found in runs.items()},
        "ratios_p50": [
            float(np.median(stream) / np.median(unary))
            for stream, unary in zip(runs["stream"], runs["unary"], strict=True)
        ],
    }


def step_latencies(decoder: Decoder, step: Step, contexts: np.ndarray, rows: int) -> np.ndarray:
    """Microseconds of each of CALLS steps over the contexts, after WARM_CALLS."""
    taken, batches = np.empty(CALLS), len(contexts) // rows
    for number in range(-WARM_CALLS, CALLS):
        first = number % batches * rows
        start = perf_counter_ns()
        step(decoder, contexts[first : first + rows])
        taken[number] = (perf_counter_ns() - start) / 1000
    return taken


def percentiles(runs: list[np.ndarray]) -> dict[str, float]:
    """p50 and p99, the medians over the runs."""
    return {
        f"p{rank}": statistics.median(float(np.percentile(run, rank)) for run in runs)
        for rank in (50, 99)
    }


def show_steps(found: list[dict[str, Any]]) -> None:
    """A small Markdown table."""
    print("\n| step | rows | in process p50 | unary p50 | p99 | stream p50 | p99 us | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for one in found:
        us = one["us"]
        print(
            f"| {one['step']} | {one['rows']} | {us['in process']['p50']:.0f} "
            f"| {us['unary']['p50']:.0f} | {us['unary']['p99']:.0f} "
            f"| {us['stream']['p50']:.0f} | {us['stream']['p99']:.0f} "
            f"| {statistics.median(one['ratios_p50']):.3f} |"
        )
