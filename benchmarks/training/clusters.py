"""How often clusters are made anew: `python -m benchmarks.training.clusters` (experiment 5).

k-means softmax (papers/004, Figures 1-3 and Table 1) with its clusters made every p = 1, 5, 10 and
50 steps, for k = sqrt V and 10 sqrt V best classes and five times as many uniform ones, beside the
full softmax. Its convolutional network on Flickr images is left out: instead of it a synthetic
task, one label a row from sparse features, at 500 classes (B = 150) and 5,000 (B = 300) as there,
and the language model at V = 10,000. Time is split into search (the proposal), the making of
clusters, and all the rest. Writes clusters.json, .md and clusters.svg.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

from benchmarks.race.bars import bars
from benchmarks.training import classifier, lm, plots
from benchmarks.training.classifier import Plan
from benchmarks.training.entrants import Entrant
from benchmarks.training.labels import Synthetic
from benchmarks.training.quality import add_training, config_of, corpus_of, default_training
from benchmarks.training.runs import (
    Found,
    Runs,
    begin,
    conditions,
    default,
    integers,
    parser_of,
    write,
)
from logitsieve.utils.options import Progress

ROWS = {500: 150, 5_000: 300}  # papers/004 section 5
LM = "language model"
LR = 0.2  # of its matrices


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is not kept, write the raw numbers, the table and the picture."""
    parser = parser_of(__doc__)
    add_training(parser)
    parser.add_argument("--parts", help="of labels, text (both)")
    parser.add_argument("--periods", type=integers, help="steps between clusterings (1,5,10,50)")
    parser.add_argument("--sizes", type=integers, help="classes of the synthetic task (500,5000)")
    parser.add_argument("--steps", type=int, help="of the synthetic task (2,000)")
    options = parser.parse_args(arguments)
    short = {"steps": 200, "tokens": 40_000, "valid": 10_000, "periods": [1, 10, 50]}
    runs, about = begin(options, short, "clusters")
    default(options, parts="labels,text", periods=[1, 5, 10, 50], sizes=[500, 5_000])
    default(options, steps=2_000, tokens=300_000)
    default_training(options)
    records: list[Found] = []
    with bars() as progress:
        if "labels" in options.parts:
            records += [
                each for size in options.sizes for each in labels(runs, size, options, progress)
            ]
        if "text" in options.parts:
            records += text(runs, options, progress)
    results = {**about, "runs": records}
    write(options.out / "clusters.json", results, markdown(results))
    plots.draw_clusters(results, options.out)


def methods(classes: int, periods: Sequence[int]) -> list[tuple[Entrant, int, int]]:
    """(method, k, p): the full softmax, and k-means softmax at each k and p."""
    found = [(Entrant("full"), 0, 0)]
    for factor in (1, 10):
        k = min(classes, round(factor * math.sqrt(classes)))
        uniform = min(5 * k, classes - k)
        entrant = Entrant("kmeans", (f"k={k}", f"n_uniform={uniform}"))
        found += [(entrant, k, period) for period in periods]
    return found


def labels(
    runs: Runs, classes: int, options: argparse.Namespace, progress: Progress
) -> list[Found]:
    """The synthetic task of so many classes."""
    task = Synthetic(classes, n_features=10_000, most=1)
    records = []
    for entrant, k, period in methods(classes, options.periods):
        plan = Plan(
            rows=ROWS.get(classes, 150),
            steps=options.steps,
            seconds=math.inf,
            every=period,
            threads=options.threads,
        )
        settings = {**classifier.settings_of(entrant, task, plan), "seconds": None}
        made = lambda e=entrant, p=plan: classifier.train(e, task, p, progress)  # noqa: E731
        records.append(_record(f"{classes:,} labels", k, period, runs.get(settings, made)))
    return records


def text(runs: Runs, options: argparse.Namespace, progress: Progress) -> list[Found]:
    """The language model."""
    corpus = corpus_of(options, options.vocabulary, progress)
    records = []
    for entrant, k, period in methods(len(corpus.vocabulary), options.periods):
        every = max(period, 1)
        config = config_of(entrant, LR, 1, options.tokens, options, index_every=every)
        settings = lm.settings_of(config, corpus)
        made = lambda c=config: lm.train(c, corpus, progress)[0]  # noqa: E731
        records.append(_record(LM, k, period, runs.get(settings, made)))
    return records


def _record(task: str, k: int, period: int, run: Found) -> Found:
    name = f"k = {k:,}, p = {period}" if k else "full"
    return {"task": task, "name": name, "k": k, "period": period, **run}


def markdown(results: Found) -> str:
    """Conditions, then for each task, k and p: how good, and where the time went."""
    lines = [
        f"{conditions(results)} Milliseconds are means over all steps. `good` is the accuracy of "
        "the synthetic task (the full softmax's best label) and the language model's perplexity.",
        "",
        "| task | k | p | good | full loss | ms: search | clustering | the rest | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in results["runs"]:
        row = f"| {run['task']} | {run['k'] or 'full'} | {run['period'] or ''} "
        if "failed" in run:
            lines.append(f"{row}| {run['failed']} ||||||")
            continue
        search, made, rest = (each / 1000 for each in split(run["us"]))
        lines.append(
            f"{row}| {good(run)} | {search:.2f} | {made:.2f} | {rest:.2f} | {run['seconds']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def good(run: Found) -> str:
    """Accuracy or perplexity, and the loss."""
    if run["task"] == LM:
        return f"{run['perplexity']:.1f} | {math.log(run['perplexity']):.3f}"
    return f"{run['p1']:.3f} | {run['loss']:.3f}"


def split(us: dict[str, Any]) -> tuple[float, float, float]:
    """Microseconds of search, clustering, and the rest."""
    rest = sum(taken for stage, taken in us.items() if stage not in ("proposal", "index"))
    return us["proposal"], us["index"], rest


if __name__ == "__main__":
    main()
