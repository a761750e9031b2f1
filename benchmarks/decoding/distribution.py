"""Do proven draws follow the softmax?  `python -m benchmarks.decoding.distribution`.

A million draws of `certified` in each of twenty real contexts at each of three temperatures,
against probabilities that numpy computes in float64: chi-square, total variation beside that of
simulated exact draws, and a Kolmogorov-Smirnov test over all p-values. Every cell of the table has
seeds of its own. Writes distribution.json and distribution.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.decoding.goodness import chi_square, kolmogorov_smirnov, total_variation
from benchmarks.decoding.indexes import add_data, dataset, decoder_of, parser_of
from benchmarks.decoding.record import about, write
from benchmarks.race.bars import bars
from benchmarks.race.datasets import Dataset
from benchmarks.race.methods import hold_threads
from benchmarks.race.run import spread
from logitsieve.api.results import Float32, Float64
from logitsieve.decoding import LocalDecoder
from logitsieve.heads import Softmax

TEMPERATURES = (0.5, 1.0, 1.5)


def main() -> None:
    """Draw, test, write."""
    parser = parser_of(__doc__)
    add_data(parser)
    parser.add_argument("--head", default="certified", help="the head that draws")
    parser.add_argument("--draws", type=int, default=1_000_000, help="in each context")
    parser.add_argument("--rows", type=int, default=20, help="contexts")
    parser.add_argument("--simulations", type=int, default=500, help="of exact draws, a context")
    parser.add_argument("--seed", type=int, default=0, help="of all draws and simulations")
    options = parser.parse_args()
    hold_threads(1)
    data = dataset(options)
    decoder = decoder_of(data, options)
    with bars() as progress:
        records = judge(decoder, spread(data.test, options.rows), options, progress)
    tests = {
        name: dict(
            zip(
                ("distance", "p_value"), kolmogorov_smirnov([r[name] for r in records]), strict=True
            )
        )
        for name in ("chi_square_p", "variation_p")
    }
    results = {
        **about(data),
        "digest": decoder.index.digest,
        "head": options.head,
        "draws": options.draws,
        "seed": options.seed,
        "simulations": options.simulations,
        "kolmogorov_smirnov": tests,
        "records": records,
    }
    write(options.out / "distribution.json", results, markdown(results, data))


def judge(
    decoder: LocalDecoder,
    hidden: Float32,
    options: argparse.Namespace,
    progress: Callable[[str, int, int], None],
) -> list[dict[str, Any]]:
    """One record for each context and temperature."""
    random = np.random.default_rng(options.seed)
    records, softmax = [], decoder.index.softmax
    for temperature in TEMPERATURES:
        seeds = random.integers(1 << 63, size=len(hidden))
        for row in range(len(hidden)):
            one = hidden[row : row + 1]
            reply = decoder.sample(
                one,
                options.draws,
                seeds=seeds[row : row + 1],
                temperature=temperature,
                head=options.head,
            )
            counts = np.bincount(reply.ids[0], minlength=softmax.vocab_size)
            probs = probabilities(softmax, one[0], temperature)
            chi = chi_square(counts, probs)
            variation = total_variation(counts, probs, options.simulations, random)
            records.append(
                {
                    "row": row,
                    "temperature": temperature,
                    "exact": bool(reply.answer.exact[0]),
                    "scanned": int(reply.answer.scanned[0]),
                    "cells": chi.cells,
                    "chi_square": chi.statistic,
                    "chi_square_p": chi.p_value,
                    "variation": variation.distance,
                    "variation_expected": variation.expected,
                    "variation_deviation": variation.deviation,
                    "variation_p": variation.p_value,
                }
            )
            progress("draw and test", len(records), len(TEMPERATURES) * len(hidden))
    return records


def probabilities(softmax: Softmax, hidden_D: Float32, temperature: float) -> Float64:
    """[V] the softmax in float64, by numpy."""
    logits = softmax.weight.astype(np.float64) @ hidden_D.astype(np.float64) + softmax.bias
    mass = np.exp((logits - logits.max()) / temperature)
    found: Float64 = mass / mass.sum()
    return found


def markdown(results: dict[str, Any], data: Dataset) -> str:
    """A row for each temperature, the tests over all p-values below."""
    contexts = len(results["records"]) // len(TEMPERATURES)
    lines = [
        f"**{data.name}**: V = {results['vocab_size']:,}, D = {results['dim']:,}. "
        f"{results['provenance']}.",
        "",
        f"{results['draws']:,} draws of `{results['head']}` in each of {contexts} contexts, seed "
        f"{results['seed']}; of each context's p-values the least and the median. Exact draws "
        f"differ from their own probabilities, too: by as much as {results['simulations']} "
        "simulations of them say.",
        "",
        "| temperature | chi-square p: least, median | total variation | of exact draws "
        "| p: least, median | proven |",
        "|---|---|---|---|---|---|",
    ]
    for temperature in TEMPERATURES:
        own = [r for r in results["records"] if r["temperature"] == temperature]
        chi, far = [r["chi_square_p"] for r in own], [r["variation_p"] for r in own]
        lines.append(
            f"| {temperature:g} | {min(chi):.3f}, {np.median(chi):.2f} "
            f"| {np.mean([r['variation'] for r in own]):.5f} "
            f"| {np.mean([r['variation_expected'] for r in own]):.5f} "
            f"| {min(far):.3f}, {np.median(far):.2f} | {np.mean([r['exact'] for r in own]):.0%} |"
        )
    chi_test, far_test = results["kolmogorov_smirnov"].values()
    lines += [
        "",
        f"Kolmogorov-Smirnov over all {len(results['records'])} p-values against the uniform "
        f"distribution: p = {chi_test['p_value']:.2f} (chi-square), {far_test['p_value']:.2f} "
        "(total variation).",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
