"""Perplexity by every normalizer: `python -m benchmarks.decoding.normalizers`.

As Table 6 of Chen, Si, Kumar, Li, Hsieh 2019, Learning to Screen (papers/001), section 7.3: exact
logits of what a head scans, those of rank R = 20 for all others. Beside it the other normalizers,
and the full softmax in numpy and torch. Perplexity over the second half of H_test, which nothing
was tuned on, by decoder.score; microseconds a row are those of one row a call on one thread, and
speed-ups are over the fastest of the full softmaxes. `candidates` gives what it does not scan no
probability: its perplexity is over the rows that it covers, beside that of the exact softmax over
the same rows. Writes normalizers.json and normalizers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.decoding.clock import summary, time_rows
from benchmarks.decoding.indexes import REAL, at_rank, decoder_of, parser_of
from benchmarks.decoding.record import about, write
from benchmarks.race.bars import bars
from benchmarks.race.datasets import load
from benchmarks.race.methods import hold_threads
from logitsieve.api.decoder import NormalizerName
from logitsieve.api.results import Float32, Float64, Int32
from logitsieve.decoding import LocalDecoder
from logitsieve.heads import Softmax
from logitsieve.index import open_index
from logitsieve.index_builder import load_array

RANK = 20  # of PTB-Small in the paper, whose V and D these are
BATCH = 64
ROWS_TIMED = 1000


class Way(NamedTuple):
    """How log Z is found, and what the paper calls that."""

    head: str
    normalizer: NormalizerName
    paper: str = ""

    @property
    def name(self) -> str:
        """In the results."""
        return f"{self.normalizer}, {self.head}"


WAYS = (
    Way("exact", "exact", "Original"),
    Way("svd", "lowrank", "SVD-softmax"),
    Way("graph", "lowrank", "FGD"),
    Way("screen", "lowrank", "Our method"),
    Way("certified", "certified"),
    Way("screen", "sampled"),
    Way("certified", "sampled"),
    Way("screen", "candidates"),
    Way("graph", "candidates"),
    Way("svd", "candidates"),
)
Score = Callable[[Float32, Int32], object]  # (hidden [1, D], target [1]) -> its log-probability


def main() -> None:
    """Score all rows, time some, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, help="contexts scored; unset is all that judge")
    parser.add_argument("--timed", type=int, default=ROWS_TIMED, help="contexts timed")
    options = parser.parse_args()
    hold_threads(1)
    data = load(REAL, options.shared, options.cache)
    index = decoder_of(data, options).index
    decoder = LocalDecoder(open_index(at_rank(index, RANK, options.cache), threads=1))
    decoder.warm()
    conditions = about(data)
    hidden = data.test[: options.rows]
    targets = judged_targets(options.shared)[: options.rows]
    ways = [way for way in WAYS if way.head in decoder.index.heads]
    with bars() as progress:
        log_probs = {way: log_probs_of(decoder, way, hidden, targets, progress) for way in ways}
        scores: dict[str, Score] = {way.name: partial(ask, decoder, way) for way in ways}
        scores |= full_softmaxes(data.softmax)
        times = timed(scores, hidden[: options.timed], targets, progress)
    exact = log_probs[WAYS[0]]
    records = [{"name": way.name, **way._asdict(), **judged(log_probs[way], exact)} for way in ways]
    results = {
        **conditions,
        "digest": decoder.index.digest,
        "rank": RANK,
        "rows": len(hidden),
        "timed": min(options.timed, len(hidden)),
        "knobs": {name: dict(decoder.index.head(name).knobs) for name in decoder.index.heads},
        "us_per_row": times,
        "ways": records,
    }
    write(options.out / "normalizers.json", results, markdown(results))


def judged_targets(shared: Path) -> Int32:
    """The word that follows each context of `lm-docs`'s test."""
    path = shared / "data" / "lm-docs-10k-200.npz"
    targets = np.asarray(load_array(f"{path}:y_test"), np.int32)
    return targets[len(targets) // 2 :]


def ask(decoder: LocalDecoder, way: Way, hidden: Float32, targets: Int32) -> Float32:
    """Log-probabilities [B, 1] through the public call."""
    return decoder.score(hidden, targets, head=way.head, normalizer=way.normalizer).log_probs


def log_probs_of(
    decoder: LocalDecoder,
    way: Way,
    hidden: Float32,
    targets: Int32,
    progress: Callable[[str, int, int], None],
) -> Float64:
    """[N] of every target."""
    found = []
    for start in range(0, len(hidden), BATCH):
        rows = slice(start, start + BATCH)
        found.append(ask(decoder, way, hidden[rows], targets[rows])[:, 0])
        progress(way.name, min(start + BATCH, len(hidden)), len(hidden))
    return np.concatenate(found).astype(np.float64)


def judged(log_probs_N: Float64, exact_N: Float64) -> dict[str, float]:
    """Perplexity over the rows with a probability, their share, the exact perplexity over them.

    `off` is the largest distance to an exact log-probability, and `mean_off` their mean.
    """
    covered = log_probs_N > -np.inf
    off = np.abs(log_probs_N - exact_N)[covered]
    return {
        "perplexity": perplexity(log_probs_N[covered]),
        "coverage": float(covered.mean()),
        "exact_perplexity_of_covered": perplexity(exact_N[covered]),
        "off": float(off.max()),
        "mean_off": float(off.mean()),
    }


def perplexity(log_probs_N: Float64) -> float:
    """exp of the mean cross-entropy."""
    return float(np.exp(-log_probs_N.mean()))


def full_softmaxes(softmax: Softmax) -> dict[str, Score]:
    """As users of the libraries have it: all logits, their log-sum-exp, one of them."""
    weight, bias = softmax.weight, softmax.bias
    matrix, offset = torch.from_numpy(weight), torch.from_numpy(bias)

    def by_numpy(hidden: Float32, targets: Int32) -> object:
        logits = weight @ hidden[0]
        logits += bias
        most = logits.max()
        return logits[targets[0]] - most - np.log(np.exp(logits - most).sum())

    @torch.inference_mode()
    def by_torch(hidden: Float32, targets: Int32) -> object:
        logits = torch.addmv(offset, matrix, torch.from_numpy(hidden[0]))
        return torch.log_softmax(logits, 0)[int(targets[0])]

    return {"numpy": by_numpy, "torch": by_torch}


def timed(
    scores: Mapping[str, Score],
    hidden: Float32,
    targets: Int32,
    progress: Callable[[str, int, int], None],
) -> dict[str, dict[str, float]]:
    """Microseconds of one row a call."""

    def call(score: Score, row: int) -> object:
        return score(hidden[row : row + 1], targets[row : row + 1])

    calls = {name: partial(call, score) for name, score in scores.items()}
    times = time_rows(calls, len(hidden), progress)
    return {name: summary(found) for name, found in times.items()}


def markdown(results: dict[str, Any]) -> str:
    """Table 6 with its columns, then a row for every way."""
    times = {name: found["median"] for name, found in results["us_per_row"].items()}
    full = ("numpy", "torch", WAYS[0].name)
    base = min((name for name in full if name in times), key=times.__getitem__)
    speed = {name: times[base] / us for name, us in times.items()}
    named = [way for way in results["ways"] if way["paper"]]
    machine = results["machine"]
    lines = [
        f"**{results['data']}**: V = {results['vocab_size']:,}, D = {results['dim']:,}, R = "
        f"{results['rank']}, {results['rows']:,} contexts. {results['provenance']}.",
        "",
        f"{machine['cpu']}, one core reads {machine['read_GBps']['L3']:.0f} GB/s from L3; one row "
        f"a call, one thread, float32, medians over {results['timed']:,} contexts. 1x is the "
        f"fastest full softmax: {base}, {times[base]:.1f} µs.",
        "",
        f"| | | {' | '.join(way['paper'] for way in named)} |",
        "|---" * (len(named) + 2) + "|",
        f"| {results['data']} | Speedup Rate | "
        + " | ".join(f"{speed[way['name']]:.2f}x" for way in named)
        + " |",
        "| | PPL | " + " | ".join(f"{way['perplexity']:.2f}" for way in named) + " |",
        "",
        "| normalizer, head | µs a row: median, mean | speed-up | perplexity | coverage "
        "| exact perplexity of the covered | log p off: mean, most |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ("numpy", "torch"):
        lines.append(f"| full softmax, {name} | {us(results, name)} | {speed[name]:.2f}x | | | | |")
    for way in results["ways"]:
        name = way["name"]
        whole = way["coverage"] == 1
        ppl = f"{way['perplexity']:.3f}"
        shown = ppl if whole else f"over the covered: {ppl}"
        lines.append(
            f"| `{way['normalizer']}`, `{way['head']}` | {us(results, name)} | {speed[name]:.2f}x "
            f"| {shown} | {way['coverage']:.2%} | {way['exact_perplexity_of_covered']:.3f} "
            f"| {way['mean_off']:.2g}, {way['off']:.2g} |"
        )
    return "\n".join(lines) + "\n"


def us(results: dict[str, Any], name: str) -> str:
    """Median and mean."""
    found = results["us_per_row"][name]
    return f"{found['median']:.1f}, {found['mean']:.1f}"


if __name__ == "__main__":
    main()
