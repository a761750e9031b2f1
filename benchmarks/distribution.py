"""Draws of `certified` beside the exact probabilities: `python -m benchmarks.distribution lm-docs`.

In each of 20 contexts many draws at three temperatures, without a filter and by each, are counted
and compared with the softmax in float64, filtered by Hugging Face's definitions. Chi-square
p-values of exact draws are uniform, which a Kolmogorov-Smirnov test of all of them asks.

Shape letters: N contexts, V vocabulary.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import raw
from benchmarks.draws import sketch_of
from benchmarks.race.bars import bars
from benchmarks.race.datasets import DATASETS, Dataset, load
from benchmarks.race.prepare import CACHE, SHARED
from logitsieve.api.requests import MOST_SAMPLES
from logitsieve.decoding import LocalDecoder

OUT = raw.RESULTS / "decoding" / "distribution.md"
CONTEXTS, DRAWS = 20, 1_000_000
TEMPERATURES = (0.5, 1.0, 1.5)
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "top_k 50": {"top_k": 50},
    "top_p 0.9": {"top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
}
LEAST = 5  # expected draws of a cell of its own; rarer ids share one


def main() -> None:
    """Draw, compare, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=[*DATASETS], metavar="DATA", help="dataset")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of each context")
    parser.add_argument("--cache", type=Path, default=CACHE, help="datasets and indexes")
    parser.add_argument("--shared", type=Path, default=SHARED, help="the folder with data/")
    parser.add_argument("--out", type=Path, default=OUT, help="the table, Markdown")
    options = parser.parse_args()
    data = load(options.data, options.shared, options.cache)
    decoder = LocalDecoder(sketch_of(data, options.cache / "draws" / data.name / "1"))
    values = {}
    with bars() as progress:
        for name, filters in FILTERS.items():
            for temperature in TEMPERATURES:
                values[name, temperature] = p_values(
                    decoder, data, options.draws, temperature, filters
                )
                progress("draw", len(values), len(FILTERS) * len(TEMPERATURES))
    options.out.write_text(markdown(data, options.draws, values), "utf-8")
    print(options.out.read_text("utf-8"))


def p_values(
    decoder: LocalDecoder, data: Dataset, draws: int, temperature: float, filters: dict[str, Any]
) -> np.ndarray:
    """The chi-square p-value [N] of each context's draws."""
    found = []
    for number, row in enumerate(data.test[:: len(data.test) // CONTEXTS][:CONTEXTS]):
        counts = np.zeros(len(data.weight), np.int64)
        for step, done in enumerate(range(0, draws, MOST_SAMPLES)):
            ids = decoder.sample(
                row[None],
                min(MOST_SAMPLES, draws - done),
                seeds=np.array([number], np.uint64),
                step=step,
                temperature=temperature,
                head="certified",
                **filters,
            ).ids
            counts += np.bincount(ids[0], minlength=len(counts))
        probabilities = distribution(data, row, temperature, filters)
        found.append(chi_square(counts, probabilities))
    return np.array(found)


def distribution(
    data: Dataset, row: np.ndarray, temperature: float, filters: dict[str, Any]
) -> np.ndarray:
    """The filtered softmax float64 [V]: temperature, top-k, top-p and min-p in that order."""
    logits = data.weight.astype(np.float64) @ row.astype(np.float64) + data.bias
    weights = np.exp((logits - logits.max()) / temperature)
    order = np.lexsort((np.arange(len(logits)), -logits))
    kept = order[: filters.get("top_k") or None]
    shares = weights[kept] / weights[kept].sum()
    kept = kept[np.cumsum(shares) - shares < filters.get("top_p", 1.0)]
    kept = kept[weights[kept] >= filters.get("min_p", 0.0)]
    left = np.zeros_like(weights)
    left[kept] = weights[kept]
    return np.asarray(left / left.sum())


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """The chance that exact draws differ as much from their probabilities; 1 for a single cell."""
    if counts[probabilities == 0].any():
        return 0.0
    expected = probabilities * counts.sum()
    common = expected >= LEAST
    cells = np.append(expected[common], expected[~common].sum())
    seen = np.append(counts[common], counts[~common].sum())
    seen, cells = seen[cells > 0], cells[cells > 0]
    freedom = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    statistic = torch.tensor(((seen - cells) ** 2 / cells).sum() / 2)
    return float(torch.special.gammaincc(freedom, statistic)) if freedom > 0 else 1.0


def kolmogorov(values: np.ndarray) -> float:
    """p of the Kolmogorov-Smirnov test against the uniform distribution (Stephens 1970)."""
    ordered, count = np.sort(values), len(values)
    places = np.arange(count)
    gap = max(((places + 1) / count - ordered).max(), (ordered - places / count).max())
    x = (math.sqrt(count) + 0.12 + 0.11 / math.sqrt(count)) * gap
    terms = ((-1) ** (n - 1) * math.exp(-2 * n * n * x * x) for n in range(1, 101))
    return min(1.0, 2.0 * float(sum(terms)))


def markdown(data: Dataset, draws: int, values: dict[tuple[str, float], np.ndarray]) -> str:
    """Conditions, and the least and median p-value of each row."""
    lines = [
        f"**{data.name}**: V = {len(data.weight):,}, D = {data.weight.shape[1]}. "
        f"{data.provenance}.",
        "",
        f"{draws:,} draws of `certified` in each of {CONTEXTS} contexts, seeds 0 to "
        f"{CONTEXTS - 1}; of each row's chi-square p-values the least and the median.",
        "",
        "| filter | temperature | least p | median p |",
        "|---|---|---|---|",
    ]
    for (name, temperature), found in values.items():
        several = found[found < 1]  # a single id is left: no question
        least, median = (several.min(), np.median(several)) if len(several) else (1.0, 1.0)
        lines.append(f"| {name} | {temperature:g} | {least:.4f} | {median:.2f} |")
    every = np.concatenate(list(values.values()))
    every = every[every < 1]
    lines += [
        "",
        f"Least of all {len(every)} p-values: {every.min():.5f}. Kolmogorov-Smirnov over all of "
        f"them against the uniform distribution: p = {kolmogorov(every):.2f}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
