"""What a draw costs: `python -m benchmarks.decoding.sampling --data lm-docs` (or synthetic-250k).

One row a call, one thread, temperature 1: the first draw of a row, and each further one, which is
what a call for so many more draws takes longer on the same row. Our heads against draws that
compute all logits: Gumbel's trick and cumulative sums in numpy, a multinomial in torch; speed-ups
are over the fastest of their first draws. Bytes that a first draw has to move, each once, beside
what the memory that they lie in allows. Writes sampling-<data>.json and .md. Whether draws are
right: benchmarks.decoding.distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.decoding.clock import summary, time_rows
from benchmarks.decoding.indexes import DRAWING, add_data, dataset, decoder_of, parser_of, read_part
from benchmarks.decoding.record import about, write
from benchmarks.machine import Bandwidth
from benchmarks.race.bars import bars
from benchmarks.race.methods import hold_threads
from benchmarks.race.run import spread
from logitsieve.api.results import Float32, Float64
from logitsieve.decoding import LocalDecoder
from logitsieve.heads import Softmax

ROWS_SMALL, ROWS_LARGE = 512, 64  # contexts timed
LARGE = 100_000  # words
Draw = Callable[[Float32, int, int], int]  # (hidden [1, D], draws, seed) -> rows of W computed
PEERS = ("numpy Gumbel-max", "numpy cumulative sums", "torch multinomial")


def main() -> None:
    """Time every way to draw, write the raw numbers and the table."""
    parser = parser_of(__doc__)
    add_data(parser)
    parser.add_argument("--rows", type=int, help="contexts timed")
    parser.add_argument("--further", type=int, default=32, help="draws after the first")
    options = parser.parse_args()
    hold_threads(1)
    data = dataset(options)
    decoder = decoder_of(data, options)
    rows = options.rows or (ROWS_LARGE if decoder.index.vocab_size > LARGE else ROWS_SMALL)
    conditions = about(data)
    hidden = spread(data.test, min(rows, len(data.test)))
    ways = {**ours(decoder), **peers(data.softmax)}
    with bars() as progress:
        found = measure(ways, hidden, options.further, progress)
    results = {
        **conditions,
        "digest": decoder.index.digest,
        "rows": len(hidden),
        "further": options.further,
        "temperature": 1.0,
        "knobs": {name: dict(decoder.index.head(name).knobs) for name in DRAWING},
        "ways": found,
    }
    for name, entry in found.items():
        entry |= moved(
            decoder, name, entry["scanned"], Bandwidth(**conditions["machine"]["read_GBps"])
        )
    write(options.out / f"sampling-{data.name}.json", results, markdown(results))


def ours(decoder: LocalDecoder) -> dict[str, Draw]:
    """Through the public call."""

    def draw(name: str, hidden: Float32, samples: int, seed: int) -> int:
        reply = decoder.sample(hidden, samples, seeds=[seed], head=name)
        return int(reply.answer.scanned[0])

    return {name: partial(draw, name) for name in DRAWING}


def peers(softmax: Softmax) -> dict[str, Draw]:
    """Float32 logits; the noise of numpy is float64, which has no zeros to take logarithms of."""
    random, noise = np.random.default_rng(0), np.empty(softmax.vocab_size)
    weight, bias = softmax.weight, softmax.bias
    matrix, offset = torch.from_numpy(weight), torch.from_numpy(bias)

    def gumbel_max(hidden: Float32, samples: int, seed: int) -> int:
        logits = weight @ hidden[0]
        logits += bias
        for _ in range(samples):
            random.standard_exponential(out=noise)
            np.log(noise, out=noise)
            np.subtract(logits, noise, out=noise)
            noise.argmax()
        return len(bias)

    def cumulative(hidden: Float32, samples: int, seed: int) -> int:
        logits = weight @ hidden[0]
        logits += bias
        logits -= logits.max()
        np.exp(logits, out=logits)
        sums = np.cumsum(logits, dtype=np.float64)
        np.searchsorted(sums, random.random(samples) * sums[-1], side="right")
        return len(bias)

    @torch.inference_mode()
    def multinomial(hidden: Float32, samples: int, seed: int) -> int:
        logits = torch.addmv(offset, matrix, torch.from_numpy(hidden[0]))
        torch.multinomial(torch.softmax(logits, 0), samples, replacement=True)
        return len(bias)

    return dict(zip(PEERS, (gumbel_max, cumulative, multinomial), strict=True))


def measure(
    ways: Mapping[str, Draw],
    hidden: Float32,
    further: int,
    progress: Callable[[str, int, int], None],
) -> dict[str, dict[str, Any]]:
    """Of each way: microseconds of first and further draws, and rows of W it computed."""
    counts = (1, 1 + further)
    scanned = {name: np.zeros((2, len(hidden))) for name in ways}
    calls = {
        f"{name}/{samples}": partial(_answer, draw, hidden, samples, scanned[name][place])
        for name, draw in ways.items()
        for place, samples in enumerate(counts)
    }
    times = time_rows(calls, len(hidden), progress)
    found = {}
    for name in ways:
        first, every = (times[f"{name}/{samples}"] for samples in counts)
        more = [(both - one) / further for one, both in zip(first, every, strict=True)]
        computed = scanned[name].mean(axis=1)
        found[name] = {
            "first_us": summary(first),
            "further_us": summary(more),
            "scanned": float(computed[0]),
            "scanned_by_all": float(computed[1]),
        }
    return found


def _answer(draw: Draw, hidden: Float32, samples: int, scanned: Float64, row: int) -> None:
    scanned[row] = draw(hidden[row : row + 1], samples, row)


def moved(
    decoder: LocalDecoder, name: str, scanned: float, bandwidth: Bandwidth
) -> dict[str, float]:
    """Bytes of a first draw, where they lie, and microseconds that reading them once takes.

    Codes and rows of W are read, numbers for each word (weights, noise, what is known) written.
    """
    index = decoder.index
    vocab_size, row = index.vocab_size, 4 * index.dim
    whole = vocab_size * (row + 4)
    if name == "certified":
        sketch = read_part(index, "sketch")
        kept = sketch["coarse"].nbytes + sketch["basis"].nbytes + 9 * vocab_size
        size, lies_in = kept + scanned * row, kept
    elif name == "screen":
        screen = read_part(index, "screen")
        kept = 12 * vocab_size
        size = screen["centroids"].size + scanned * row + kept
        lies_in = min(whole, screen["ids"].size * row) + kept
    else:
        size = lies_in = whole + (16 * vocab_size if name == "exact" else 8 * vocab_size)
    bound = size / bandwidth.of(int(lies_in)) / 1000
    return {"bytes": float(size), "lies_in_bytes": float(lies_in), "bound_us": bound}


def markdown(results: dict[str, Any]) -> str:
    """Conditions, then a row for each way."""
    ways = results["ways"]
    base = min(PEERS, key=lambda name: ways[name]["first_us"]["median"])
    base_us = ways[base]["first_us"]["median"]
    machine = results["machine"]
    lines = [
        f"**{results['data']}**: V = {results['vocab_size']:,}, D = {results['dim']:,}, B = 1, one "
        f"thread, float32, temperature 1. {results['provenance']}.",
        "",
        f"{machine['cpu']}, one core reads {machine['read_GBps']['L3']:.0f} GB/s from L3 and "
        f"{machine['read_GBps']['DRAM']:.0f} from DRAM. Medians (and means) over {results['rows']} "
        f"contexts; a further draw is one of {results['further']} after the first. Times as fast: "
        f"over the first draw of {base}. torch draws one id by noise for each word and several by "
        "cumulative sums, so its further ones can cost less than nothing.",
        "",
        "| draws by | first, µs | times as fast | each further, µs | rows of W, first "
        "| rows of W, all | MB moved | bound, µs | share of bound |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, entry in ways.items():
        first, more = entry["first_us"], entry["further_us"]
        rows = [f"{entry[key]:,.0f}" for key in ("scanned", "scanned_by_all")]
        lines.append(
            f"| {f'`{name}`' if name in DRAWING else name} "
            f"| {first['median']:,.1f} ({first['mean']:,.1f}) "
            f"| {base_us / first['median']:.1f}x | {more['median']:.2f} ({more['mean']:.2f}) "
            f"| {' | '.join(rows)} | {entry['bytes'] / 1e6:.2f} | {entry['bound_us']:,.1f} "
            f"| {entry['bound_us'] / first['median']:.0%} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
