"""What is learned: `python -m benchmarks.training.quality` (experiment 1).

An LSTM language model on docs.txt.gz (V = 10,000, D = 200, two layers, no tying), judged by the
full softmax's perplexity on 40,000 words held out in blocks. Every run reads the same text in the
same order. All methods have the same optimizers: AdamW for the LSTM, at one rate, and for the two
matrices Adagrad, which does the same with dense and sparse gradients; its learning rate is searched
for each method (one seed, 300,000 words, V = 10,000). With Adam, rows that are not targets fall as
fast as if they mattered, and the full softmax itself learns little in a few thousand steps.

parts: main (full, full normalised, LSH, uniform, RF; three seeds of 2,000,000 words), and with one
seed and 500,000 words (--others): classes (every other method at 100 and 1,100 scored classes, as
papers/002 and 000 have them; the rate is that of 1,100), features (R of RF-softmax: papers/002
Figure 2), nu (its Figure 1), large (V = 64,000, R = 2,048 and 8,192: its Figure 4). `over full`
compares with the full softmax after as many words.

Writes quality.json, .md, quality.svg (perplexity by step and by second) and features.svg.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.race.bars import bars
from benchmarks.training import lm, plots
from benchmarks.training.data import docs
from benchmarks.training.entrants import FULL as ENTIRE
from benchmarks.training.entrants import Entrant, parse_all, present, scoring, variants
from benchmarks.training.runs import (
    Found,
    Runs,
    begin,
    conditions,
    default,
    integers,
    numbers,
    parser_of,
    write,
)
from logitsieve.training import LOSSES
from logitsieve.training.trainer.config import TrainConfig
from logitsieve.training.trainer.corpus import Corpus
from logitsieve.utils.options import Progress

TAU = 1 / 0.3**2  # papers/002
FULL = Entrant("full")
FEATURES = (128, 256, 512, 1024)
NUS = (1.0, 2.0, 4.0, 8.0, 11.1, 16.0)
LARGE = 64_000
UNSEARCHED = {"search": 0, "rates": [0.4]}  # what most losses learn by best
NORMALISED = Entrant("full", (f"scale={TAU:.3f}",))


class Case(NamedTuple):
    """A method, its vocabulary, its words, how many seeds, and whether a rate is searched for."""

    part: str
    entrant: Entrant
    vocabulary: int
    tokens: int
    seeds: int
    searched: Entrant  # whose learning rate it takes


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is not kept, write the raw numbers, the table and the pictures."""
    parser = parser_of(__doc__)
    add_training(parser)
    parser.add_argument("--parts", help="of main, classes, features, nu, large (all)")
    parser.add_argument("--methods", help="LOSS[:NAME=VALUE;...],... instead of the parts")
    parser.add_argument("--seeds", type=int, help="seeds of the main rows (3)")
    parser.add_argument("--others", type=int, help="words of runs of the other parts (500,000)")
    parser.add_argument("--sizes", type=integers, help="scored classes of `classes` (100,1100)")
    options = parser.parse_args(arguments)
    short = {"parts": "main", "tokens": 200_000, "seeds": 1, "valid": 20_000, **UNSEARCHED}
    runs, about = begin(options, short, "quality")
    default_training(options)
    default(options, parts="main,classes,features,nu,large", seeds=3, sizes=[100, 1100])
    default(options, others=min(500_000, options.tokens))
    records = []
    with bars() as progress:
        cases = cases_of(options)
        sizes = {options.vocabulary, *(case.vocabulary for case in cases)}
        texts = {size: corpus_of(options, size, progress) for size in sizes}
        for number, case in enumerate(cases):
            corpus, searched = texts[case.vocabulary], texts[options.vocabulary]
            lr, tried = rate_of(runs, case.searched, searched, options, progress)
            for seed in range(1, case.seeds + 1):
                record = train(runs, case, corpus, lr, seed, options, progress)
                records.append({"part": case.part, "tried": tried, **record})
            progress("quality", number + 1, len(cases))
    results = {**about, "dim": options.dim, "runs": records}
    write(options.out / "quality.json", results, markdown(results))
    plots.draw_quality(results, options.out)


def add_training(parser: argparse.ArgumentParser) -> None:
    """The options of every experiment that trains language models."""
    parser.add_argument("--tokens", type=int, help="words of a run (2,000,000)")
    parser.add_argument("--search", type=int, help="words of a search run (300,000), or 0: none")
    parser.add_argument("--lr", type=float, default=4e-3, help="learning rate of the LSTM")
    parser.add_argument(
        "--rates", type=numbers, help="tried for the matrices (0.05 to 0.8); unsearched, the last"
    )
    parser.add_argument("--valid", type=int, help="words that judge (40,000)")
    parser.add_argument("--vocabulary", type=int, default=10_000, help="V")
    parser.add_argument("--dim", type=int, default=200, help="D")
    parser.add_argument("--rows", type=int, default=8, help="streams; times 35: B")
    parser.add_argument("--head-optimizer", default="adagrad", help="adagrad, sgd, auto")
    parser.add_argument("--text", help="another text, words split by spaces")


def default_training(options: argparse.Namespace) -> None:
    """What TRAINING asks for, where neither the user nor `--short` says otherwise."""
    default(
        options, tokens=2_000_000, search=300_000, rates=[0.05, 0.1, 0.2, 0.4, 0.8], valid=40_000
    )


def corpus_of(options: argparse.Namespace, vocabulary: int, progress: Progress) -> Corpus:
    """The text at that vocabulary."""
    return docs(
        options.shared,
        options.cache,
        vocabulary,
        progress,
        text=options.text and options.shared.__class__(options.text),
        valid_words=options.valid,
    )


def cases_of(options: argparse.Namespace) -> list[Case]:
    """All methods of all parts, as far as the registry has them."""
    tokens, size = options.tokens, options.vocabulary
    if options.methods:
        return [
            Case("methods", each, size, tokens, options.seeds, each)
            for each in present(parse_all(options.methods))
        ]
    few, many = min(options.sizes), max(options.sizes)
    rf = scoring("rf", few)
    rows = present([FULL, NORMALISED, scoring("lsh", many), scoring("uniform", many), rf])
    losses = [name for name in LOSSES if name not in ENTIRE]

    def short(part: str, entrants: Iterable[Entrant], vocabulary: int = size) -> list[Case]:
        return [Case(part, e, vocabulary, options.others, 1, rf) for e in present(entrants)]

    parts: dict[str, list[Case]] = {
        "main": [Case("main", each, size, tokens, options.seeds, each) for each in rows],
        "classes": [
            Case("classes", each, size, options.others, 1, searched)
            for name in losses
            for m in options.sizes
            for each, searched in zip(variants(name, m), variants(name, many), strict=True)
        ],
        "features": short("features", (rf.plus(f"n_features={r}") for r in FEATURES)),
        "nu": short("nu", (rf.plus(f"nu={nu}") for nu in NUS)),
        "large": short("large", (rf.plus(f"n_features={r}") for r in (2048, 8192)), LARGE),
    }
    parts["large"].append(Case("large", NORMALISED, LARGE, options.others, 1, NORMALISED))
    if options.others != tokens:
        parts["classes"] += [Case("classes", e, size, options.others, 1, e) for e in rows[:2]]
    return [case for part in options.parts.split(",") for case in parts[part]]


def rate_of(
    runs: Runs, entrant: Entrant, corpus: Corpus, options: argparse.Namespace, progress: Progress
) -> tuple[float, list[Found]]:
    """The learning rate with the least perplexity after a search run, and all that were tried."""
    if not options.search:
        return options.rates[-1], []
    tried = []
    for lr in options.rates:
        config = config_of(entrant, lr, 1, options.search, options)
        found = _run(runs, config, corpus, progress, looks=1)
        tried.append({"lr": lr, "perplexity": found.get("perplexity", float("inf"))})
    return min(tried, key=lambda each: each["perplexity"])["lr"], tried


def train(
    runs: Runs,
    case: Case,
    corpus: Corpus,
    lr: float,
    seed: int,
    options: argparse.Namespace,
    progress: Progress,
) -> Found:
    """One run at that rate."""
    config = config_of(case.entrant, lr, seed, case.tokens, options)
    record = _run(runs, config, corpus, progress, looks=lm.LOOKS)
    return {"method": case.entrant.label, "seed": seed, **record}


def config_of(
    entrant: Entrant,
    lr: float,
    seed: int,
    tokens: int,
    options: argparse.Namespace,
    **more: Any,
) -> TrainConfig:
    """The options of a run whose matrices have that learning rate."""
    return lm.config_of(
        entrant,
        vocabulary=options.vocabulary,
        dim=options.dim,
        streams=options.rows,
        words=tokens,
        lr=options.lr,
        head_lr=lr,
        seed=seed,
        head_optimizer=options.head_optimizer,
        threads=options.threads,
        **more,
    )


def _run(runs: Runs, config: Any, corpus: Corpus, progress: Progress, looks: int) -> Found:
    settings = {**lm.settings_of(config, corpus), "looks": looks}
    return runs.get(settings, lambda: lm.train(config, corpus, progress, looks)[0])


def markdown(results: Found) -> str:
    """Conditions, then a row for each method: means over its seeds."""
    rows = grouped(results["runs"])
    full = full_by_size(results["runs"])
    lines = [
        f"{conditions(results)} LSTM of two layers, D = {results['dim']}, "
        "streams of 35 words. Perplexity of the full softmax on held-out text, "
        "mean over seeds (least to most); "
        "seconds are those of the training steps.",
        "",
        "| part | method | V | words | seeds | lr | perplexity | over full | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (part, method, classes), own in rows.items():
        done = [run for run in own if "failed" not in run]
        if not done:
            lines.append(f"| {part} | {method} | {classes:,} | {own[0]['failed']} |||||")
            continue
        found = [run["perplexity"] for run in done]
        mean = statistics.fmean(found)
        words = done[0]["settings"]["words"]
        over = f"{mean / full[classes, words] - 1:+.1%}" if (classes, words) in full else ""
        seconds = statistics.fmean(run["seconds"] for run in done)
        lr = done[0]["settings"]["head_lr"]
        lines.append(
            f"| {part} | {method} | {classes:,} | {words:,} | {len(done)} | {lr:g} "
            f"| {mean:.1f} ({min(found):.1f} to {max(found):.1f}) | {over} | {seconds:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def full_by_size(runs: Sequence[Found]) -> dict[tuple[int, int], float]:
    """The full softmax's mean perplexity by V and words."""
    found: dict[tuple[int, int], dict[int, float]] = {}
    for run in runs:
        if run["method"] == FULL.label and "failed" not in run:
            size = run["settings"]["classes"], run["settings"]["words"]
            found.setdefault(size, {})[run["seed"]] = run["perplexity"]
    return {size: statistics.fmean(seeds.values()) for size, seeds in found.items()}


def grouped(runs: Sequence[Found]) -> dict[tuple[str, str, int], list[Found]]:
    """Runs by part, method and V, seeds together."""
    rows: dict[tuple[str, str, int], list[Found]] = {}
    for run in runs:
        rows.setdefault((run["part"], run["method"], run["settings"]["classes"]), []).append(run)
    return rows


if __name__ == "__main__":
    main()
