"""From training to serving: `python -m benchmarks.training.serving` (experiment 6).

Is a softmax that was trained sub-linearly as screenable as one that was trained in full? The same
language model is trained with each loss (the learning rate is quality's), its contexts are
captured, and an index is built for P@1 >= 0.998 (lower 95 % bound, on held-out contexts). Then the
heads' time for one row a call and their precision on contexts of text that decided nothing, beside
the exact head. A worse model may be easier to screen, so perplexities stand beside.
Writes serving.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.race.bars import bars
from benchmarks.training import lm, plots
from benchmarks.training.entrants import Entrant, parse_all, present, scoring
from benchmarks.training.quality import (
    NORMALISED,
    UNSEARCHED,
    add_training,
    config_of,
    corpus_of,
    default_training,
    rate_of,
)
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
from logitsieve.api.results import Float32, Int32
from logitsieve.evaluation import evaluate, us_per_row
from logitsieve.index import Index
from logitsieve.index_builder import BuildConfig, build
from logitsieve.training.trainer import LanguageModel
from logitsieve.training.trainer.corpus import Corpus
from logitsieve.training.trainer.streams import windows
from logitsieve.utils.options import Progress

HEADS = ("exact", "screen", "certified")
TARGET = {"p1": 0.998}
K = 5
BLOCK = 256  # contexts judged at once


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, build and judge what is not kept, write the raw numbers and the table."""
    parser = parser_of(__doc__)
    add_training(parser)
    parser.add_argument("--methods", help="LOSS[:NAME=VALUE;...],... (full, LSH, uniform, RF, ...)")
    parser.add_argument("--contexts", type=int, help="captured to fit the index (100,000)")
    parser.add_argument("--clusters", type=integers, help="of screens tried (the builder's own)")
    parser.add_argument("--seed", type=int, default=1, help="of the trainings")
    options = parser.parse_args(arguments)
    short = {"methods": "full,lsh,uniform:n_sampled=1100", "tokens": 200_000, **UNSEARCHED}
    runs, about = begin(options, {**short, "contexts": 30_000}, "serving")
    default_training(options)
    default(options, contexts=100_000, clusters=list(BuildConfig().clusters_tried))
    records = []
    with bars() as progress:
        entrants = entrants_of(options)
        corpus = corpus_of(options, options.vocabulary, progress)
        searches = Runs(options.cache / "runs" / "quality")
        for number, entrant in enumerate(entrants):
            lr, _ = rate_of(searches, entrant, corpus, options, progress)
            records.append(one(runs, entrant, corpus, lr, options, progress))
            progress("serving", number + 1, len(entrants))
    results = {**about, "target": TARGET, "k": K, "batch": 1, "runs": records}
    write(options.out / "serving.json", results, markdown(results))
    plots.draw_serving(results, options.out)


def entrants_of(options: argparse.Namespace) -> list[Entrant]:
    """The main rows of quality, and the other sub-linear losses."""
    if options.methods:
        return present(parse_all(options.methods))
    names = ("lsh", "uniform", "unigram", "kmeans", "lns")
    found = [Entrant("full"), NORMALISED, *(scoring(name, 1100) for name in names)]
    return present([*found, scoring("rf", 100)])


def one(
    runs: Runs,
    entrant: Entrant,
    corpus: Corpus,
    lr: float,
    options: argparse.Namespace,
    progress: Progress,
) -> Found:
    """A method's model, index and times."""
    config = config_of(entrant, lr, options.seed, options.tokens, options)
    built = {"contexts": options.contexts, "clusters_tried": options.clusters}
    settings = {**lm.settings_of(config, corpus), **built}

    def make() -> Found:
        found, trainer = lm.train(config, corpus, progress)
        model = trainer.language_model()
        return {**found, **served(model, corpus, options, progress)}

    return {"method": entrant.label, **runs.get(settings, make)}


def served(
    model: LanguageModel, corpus: Corpus, options: argparse.Namespace, progress: Progress
) -> Found:
    """What an index of the model's softmax takes and finds, by head."""
    fit = capture(model, corpus.train, options.contexts)
    unseen = capture(model, corpus.valid, len(corpus.valid))
    half = len(unseen) // 2
    weight = model.output.weight.detach().numpy()
    bias = model.output.bias.detach().numpy()
    with tempfile.TemporaryDirectory() as folder:
        index = build(
            weight,
            bias,
            fit,
            Path(folder) / "served" / "1",
            heads=HEADS,
            target_precision=TARGET,
            config=BuildConfig(threads=options.threads, clusters_tried=tuple(options.clusters)),
            heldout=unseen[:half],
            best_effort=True,
            progress=progress,
        )
        heads = {name: judged(index, name, unseen[half:]) for name in HEADS}
        index.close()
    return {"heads": heads, "entropy": entropy(weight, bias, unseen[half:])}


@torch.no_grad()
def capture(model: LanguageModel, ids: Int32, most: int) -> Float32:
    """Contexts [N, D] of windows spread over the text."""
    parts = [model.hidden(batch)[0].flatten(0, 1) for batch in windows(ids, most)]
    found: Float32 = torch.cat(parts).numpy()
    return found


def judged(index: Index, name: str, hidden: Float32) -> dict[str, float]:
    """One row a call: microseconds, candidates, and precision on contexts that chose nothing."""
    head, exact = index.head(name), index.head("exact")
    found = evaluate(head, exact, blocks(hidden), (1, K))
    return {
        "us_per_row": us_per_row(head, hidden, K, 1),
        "candidates": found.scanned[K],
        "p1": found.precision[1].mean,
        "p1_low": found.precision[1].low,
        "p5": found.precision[K].mean,
    }


def blocks(hidden: Float32) -> Iterator[Float32]:
    """In turn."""
    return (hidden[start : start + BLOCK] for start in range(0, len(hidden), BLOCK))


def entropy(weight: Float32, bias: Float32, hidden: Float32) -> float:
    """The softmax's mean entropy in nats: the flatter, the harder to screen."""
    found = []
    for rows in blocks(hidden):
        log_p = torch.from_numpy(rows @ weight.T + bias).double().log_softmax(1)
        found.append(-(log_p.exp() * log_p).sum(1))
    return float(torch.cat(found).mean()) if found else float(np.nan)


def markdown(results: Found) -> str:
    """Conditions, then a row for each trained softmax."""
    lines = [
        f"{conditions(results)} One row a call, k = {results['k']}; every index is built for P@1 "
        f">= {results['target']['p1']} and judged on other contexts.",
        "",
        "| trained with | perplexity | entropy | exact, µs | screen, µs | times as fast "
        "| candidates | P@1 (low) | certified, µs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in results["runs"]:
        if "failed" in run:
            lines.append(f"| {run['method']} | {run['failed']} |||||||")
            continue
        exact, screen, certified = (run["heads"][name] for name in HEADS)
        lines.append(
            f"| {run['method']} | {run['perplexity']:.1f} | {run['entropy']:.2f} "
            f"| {exact['us_per_row']:.1f} | {screen['us_per_row']:.2f} "
            f"| {exact['us_per_row'] / screen['us_per_row']:.0f}x | {screen['candidates']:.0f} "
            f"| {screen['p1']:.4f} ({screen['p1_low']:.4f}) | {certified['us_per_row']:.1f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
