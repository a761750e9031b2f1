"""How often lazy Gumbel draws fail: `python -m benchmarks.decoding.lazy_gumbel`.

Levy, Chan, Ermon 2018, LSH Softmax (papers/000), Theorem 5. Gumbel's trick in numpy with S the true
top k of real contexts. The full draw is the largest of all x_i + G_i. The lazy one, from the same
noise, is the largest of S and of the ids outside whose noise is above t: Binomial(C - k, l / C) of
them, for t = -log(-log(1 - l / C)) fixed before anything is drawn. It is proven right where the
best of S is above (k-th logit) + t, so it may fail in at most (1 - l / C)^k <= e^{-k l / C} of all
draws. With t = (best of S) - (k-th logit), as our kernel has it, it is always proven. Two shares of
draws are counted for each k and l: those that differ from the full draw, and those that the proof
does not reach; the theorem's own k = l = sqrt(log 1/delta) is on a line of its own. Both for real
contexts and for equal logits, where the proof fails as often as the bound says.

Then, as equation 4 has it, the error of the `sampled` log Z beside the error that it reports.
Writes lazy-gumbel.json, .md, lazy-gumbel.svg and sampled.svg.

Shape letters: N contexts, C ids, R draws, K and L places of the grids.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.decoding import plots
from benchmarks.decoding.indexes import add_data, dataset, parser_of
from benchmarks.decoding.partition import partition_errors
from benchmarks.decoding.record import about, write
from benchmarks.race.bars import bars
from benchmarks.race.methods import hold_threads
from benchmarks.race.run import spread
from logitsieve.api.results import Float64

KS = (3, 10, 30, 100, 300, 1000)
LS = (3, 10, 30, 100, 300, 1000)
DELTAS = (0.1, 0.01, 0.001)
EQUAL = 4  # contexts of equal logits, which all are the same
AT_ONCE = 200  # draws whose noise is in memory together


class Failures(NamedTuple):
    """Shares of all draws."""

    different: Float64  # [K, L] the fixed threshold's draw is not the full one
    unproven: Float64  # [K, L] the best of S is not above the k-th logit + t
    adaptive: Float64  # [K] the adaptive threshold's draw is not the full one
    looked_at: Float64  # [K] ids outside S that the adaptive threshold looks at, on average


def main() -> None:
    """Simulate, write the raw numbers, the tables and the pictures."""
    parser = parser_of(__doc__)
    add_data(parser)
    parser.add_argument("--rows", type=int, default=20, help="contexts whose draws are simulated")
    parser.add_argument("--draws", type=int, default=5_000, help="in each context")
    parser.add_argument(
        "--estimated", type=int, default=500, help="contexts whose log Z is sampled"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all noise")
    options = parser.parse_args()
    hold_threads(1)
    data = dataset(options)
    weight, bias = data.weight.astype(np.float64), data.bias.astype(np.float64)
    contexts = spread(data.test, options.rows)
    real = contexts.astype(np.float64) @ weight.T + bias
    with bars() as progress:
        drawn = {
            "real": simulate(real, options, progress, "real contexts"),
            "equal": simulate(np.zeros((EQUAL, len(bias))), options, progress, "equal logits"),
        }
        errors = partition_errors(
            data.softmax, spread(data.test, options.estimated), KS, LS, options.seed, progress
        )
    results = {
        **about(data),
        "rows": options.rows,
        "draws": options.draws,
        "seed": options.seed,
        "failures": drawn,
        "partition": errors,
    }
    write(options.out / "lazy-gumbel.json", results, markdown(results))
    plots.draw(results, options.out)


def simulate(
    logits_NC: Float64,
    options: argparse.Namespace,
    progress: Callable[[str, int, int], None],
    stage: str,
) -> dict[str, Any]:
    """The grid, and the theorem's own k and l, over all contexts."""
    random = np.random.default_rng(options.seed)
    printed = [math.ceil(math.sqrt(math.log(1 / delta))) for delta in DELTAS]
    ks, ls = sorted({*KS, *printed}), sorted({*LS, *printed})
    size, found = logits_NC.shape[1], []
    for row, logits_C in enumerate(logits_NC):
        found.append(failures(np.sort(logits_C)[::-1], ks, ls, options.draws, random))
        progress(stage, row + 1, len(logits_NC))
    different, unproven, adaptive, looked_at = (
        np.mean(part, axis=0) for part in zip(*found, strict=True)
    )

    def record(k: int, taken: int) -> dict[str, Any]:
        at = ks.index(k), ls.index(taken)
        return {
            "k": k,
            "l": taken,
            "different": float(different[at]),
            "unproven": float(unproven[at]),
            "bound": (1 - taken / size) ** k,
            "exponential": math.exp(-k * taken / size),
        }

    return {
        "grid": [record(k, taken) for k in KS for taken in LS],
        "adaptive": [
            {
                "k": k,
                "different": float(adaptive[ks.index(k)]),
                "looked_at": float(looked_at[ks.index(k)]),
            }
            for k in KS
        ],
        "as_printed": [
            {"delta": delta, **record(number, number)}
            for delta, number in zip(DELTAS, printed, strict=True)
        ],
    }


def failures(
    sorted_C: Float64, ks: Sequence[int], ls: Sequence[int], draws: int, random: np.random.Generator
) -> Failures:
    """Of one context's logits, the largest first: S is the first k."""
    size = len(sorted_C)
    places, thresholds_L = np.array(ks) - 1, -np.log(-np.log1p(-np.array(ls) / size))
    floors_K = sorted_C[places]
    different, unproven = np.zeros((2, len(ks), len(ls)))
    adaptive, looked_at = np.zeros((2, len(ks)))
    for start in range(0, draws, AT_ONCE):
        count = min(AT_ONCE, draws - start)
        noise_RC = -np.log(random.standard_exponential((count, size)))
        perturbed_RC = sorted_C + noise_RC
        winner_R = perturbed_RC.argmax(axis=1)
        own_R = noise_RC[np.arange(count), winner_R]
        best_RK = np.maximum.accumulate(perturbed_RC, axis=1)[:, places]
        outside_RK = winner_R[:, None] > places
        low_RL = own_R[:, None] <= thresholds_L
        different += (outside_RK[:, :, None] & low_RL[:, None]).sum(axis=0)
        margin_RK = best_RK - floors_K
        unproven += (margin_RK[:, :, None] <= thresholds_L).sum(axis=0)
        adaptive += (outside_RK & (own_R[:, None] <= margin_RK)).sum(axis=0)
        looked_at += ((size - 1 - places) * -np.expm1(-np.exp(-margin_RK))).sum(axis=0)
    return Failures(different / draws, unproven / draws, adaptive / draws, looked_at / draws)


def markdown(results: dict[str, Any]) -> str:
    """The theorem as printed, as corrected, the adaptive threshold, and the sampled log Z."""
    size = results["vocab_size"]
    real, equal = (results["failures"][name] for name in ("real", "equal"))
    lines = [
        f"**{results['data']}**: C = {size:,}, D = {results['dim']:,}. {results['provenance']}.",
        "",
        f"{results['draws']:,} draws in each of {results['rows']} contexts, and with equal logits.",
        "",
        "As printed, k = l = sqrt(log 1/delta):",
        "",
        "| delta promised | k = l | draws that differ: real contexts | equal logits |",
        "|---|---|---|---|",
    ]
    for one, other in zip(real["as_printed"], equal["as_printed"], strict=True):
        lines.append(
            f"| {one['delta']:g} | {one['k']} | {one['different']:.3f} | {other['different']:.3f} |"
        )
    lines += [
        "",
        "As corrected, k l = C log 1/delta:",
        "",
        "| k | l | e^(-k l / C) | (1 - l / C)^k | real: not proven | real: differ "
        "| equal: not proven | equal: differ |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one, other in zip(real["grid"], equal["grid"], strict=True):
        if 0.1 <= one["k"] * one["l"] / size <= 10:
            shares = [one["exponential"], one["bound"], one["unproven"], one["different"]]
            shares += [other["unproven"], other["different"]]
            cells = [f"{share:.5f}" for share in shares]
            lines.append(f"| {one['k']:,} | {one['l']:,} | {' | '.join(cells)} |")
    lines += [
        "",
        "With the threshold that follows the draw:",
        "",
        "| k | draws that differ | ids looked at outside: real contexts | equal logits |",
        "|---|---|---|---|",
    ]
    for one, other in zip(real["adaptive"], equal["adaptive"], strict=True):
        lines.append(
            f"| {one['k']:,} | {one['different'] + other['different']:g} "
            f"| {one['looked_at']:,.1f} | {other['looked_at']:,.1f} |"
        )
    lines += ["", *partition_table(results["partition"])]
    return "\n".join(lines) + "\n"


def partition_table(records: Sequence[dict[str, Any]]) -> list[str]:
    """Errors of the sampled log Z by k down and l across."""
    lines = [
        "Root mean square error of the sampled log Z (about the relative error of Z), in brackets "
        "the root mean square of the standard error it reports:",
        "",
        f"| k, l = | {' | '.join(f'{taken:,}' for taken in LS)} |",
        "|---" * (len(LS) + 1) + "|",
    ]
    for k in KS:
        own = [record for record in records if record["k"] == k]
        cells = [f"{each['rms_error']:.4f} ({each['reported']:.4f})" for each in own]
        lines.append(f"| {k:,} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
