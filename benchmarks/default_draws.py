"""Draws at the default grade beside those of `full`, one row a call, one thread.

    python -m benchmarks.default_draws smollm2 INDEX CONTEXTS.npy...

INDEX is that of `logitsieve build --weight model.gguf`, CONTEXTS [N, D] what `logitsieve capture
-m` made of text that nothing was fitted on. Times are of the thread's CPU, so that other work
on the machine counts as little as it can; calls of both heads alternate. Log-probabilities are
compared with those of `full`. Results join those of other models in results/default_draws.json.gz.
"""

from pathlib import Path
from time import thread_time_ns
from typing import Any

import numpy as np

from benchmarks import raw
from benchmarks.machine import describe
from benchmarks.race.methods import hold_threads
from benchmarks.tables.draws import default_draws as table
from logitsieve.api.results import Float32, Float64, SampleReply
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index

HEADS = "full", "sketch"
TEMPERATURES = 0.8, 1.0
FILTERS: dict[str, dict[str, float]] = {
    "unfiltered": {},
    "top_k 50": {"top_k": 50},
    "top_p 0.95": {"top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
}
ROUNDS = 3  # of which the least time of a context counts


def main() -> None:
    parser = raw.parser(__doc__, "default_draws.json.gz")
    parser.add_argument("name", help="of the model")
    parser.add_argument("index", type=Path, help="its index")
    parser.add_argument("contexts", type=Path, nargs="+", help="files of contexts")
    parser.add_argument("--rows", type=int, default=64, help="contexts of each file")
    options = parser.parse_args()
    hold_threads(1)
    hidden_states = np.concatenate([few(np.load(path), options.rows) for path in options.contexts])
    found = measure(LocalDecoder(open_index(options.index, threads=1)), hidden_states)
    raw.write(options.out, raw.read(options.out) | {options.name: found})
    print(table({options.name: found}))


def few(contexts: Float32, rows: int) -> Float32:
    """Evenly spread contexts."""
    return np.ascontiguousarray(contexts[:: max(1, len(contexts) // rows)][:rows], np.float32)


def measure(decoder: LocalDecoder, hidden_states: Float32) -> dict[str, Any]:
    """Microseconds of each context by temperature, filter, log-probabilities and head."""
    asked = {}
    for temperature in TEMPERATURES:
        for name, filters in FILTERS.items():
            options = {"temperature": temperature, **filters}
            plain, scored = (
                compare(decoder, hidden_states, options | {"log_probs": each})
                for each in (False, True)
            )
            asked[f"{name}, T = {temperature:g}"] = {"plain": plain, "scored": scored}
    index = decoder.index
    shape = {"vocab_size": index.vocab_size, "dim": index.dim, "contexts": len(hidden_states)}
    return {"machine": describe(), **shape, "asked": asked}


def compare(
    decoder: LocalDecoder, hidden_states: Float32, options: dict[str, Any]
) -> dict[str, Any]:
    """Times of both heads, how many ids differ, and the errors of log p."""
    us: dict[str, Float64] = {head: np.full(len(hidden_states), np.inf) for head in HEADS}
    replies: dict[str, list[SampleReply]] = {head: [] for head in HEADS}
    for turn in range(ROUNDS):
        for row, context in enumerate(hidden_states):
            one = context[None].copy()
            for head in HEADS[:: 1 if turn % 2 else -1]:
                started = thread_time_ns()
                reply = decoder.sample(one, seeds=[row], head=head, **options)
                us[head][row] = min(us[head][row], (thread_time_ns() - started) / 1000)
                if turn == 0:
                    replies[head].append(reply)
    ids = np.array([[each.ids[0, 0] for each in replies[head]] for head in HEADS])
    log_probs = np.array([[each.log_probs[0, 0] for each in replies[head]] for head in HEADS])
    off = np.abs(log_probs[0] - log_probs[1])[ids[0] == ids[1]].astype(float)
    proven = float(np.mean([each.answer.proven[0] for each in replies["sketch"]]))
    found = {"us": {head: times.round(1).tolist() for head, times in us.items()}}
    return found | {"differ": int((ids[0] != ids[1]).sum()), "proven": proven, "off": off.tolist()}


if __name__ == "__main__":
    main()
