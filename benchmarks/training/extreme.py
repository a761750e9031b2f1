"""Extreme classification: `python -m benchmarks.training.extreme` (experiment 4).

Two tasks. skip-gram: every word of docs.txt.gz that occurs twice (48,793), a word predicts the two
to each side, D = 200 (papers/003 has Text8, 253,855 words). synthetic: 200,000 labels that occur as
1 / rank, sparse features, one to five labels a row, made by seed as they are read, D = 128. One
hidden layer, Adam at one rate for all methods (--rate), each method the same time (--seconds of
steps alone) or --steps, whichever is first: P@1, P@3, P@5 and the full loss by second and by step.

parts: skip-gram, synthetic, periods (LNS on the synthetic labels: re-index every step, every 50,
every 50 growing, never; by default only as corrected, by the label). The table says when a method
reached the P@1 that the full softmax had at its end. Writes extreme.json, .md,
extreme-skip-gram.svg and extreme-synthetic.svg.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.race.bars import bars
from benchmarks.training import classifier, plots
from benchmarks.training.classifier import Plan
from benchmarks.training.data import docs
from benchmarks.training.entrants import Entrant, parse_all, present, variants
from benchmarks.training.labels import SkipGram, Synthetic, Task
from benchmarks.training.runs import Found, begin, conditions, default, parser_of, write
from logitsieve.training import LOSSES
from logitsieve.utils.options import Progress

WORDS = 48_793  # of docs.txt.gz that occur twice
SHORT = ("full", "uniform", "lns", "lsh", "rf", "nce")
PERIODS = {"1": (1, 1.0), "50": (50, 1.0), "50 growing": (50, 1.1), "never": (0, 1.0)}


class Case(NamedTuple):
    """A method at a task."""

    part: str
    entrant: Entrant
    task: Task
    plan: Plan


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is not kept, write the raw numbers, the table and the pictures."""
    parser = parser_of(__doc__)
    parser.add_argument("--parts", help="of skip-gram, synthetic, periods (all)")
    parser.add_argument("--methods", help="LOSS[:NAME=VALUE;...],... (all, at --scored)")
    parser.add_argument("--scored", type=int, help="classes a row meets (1,000)")
    parser.add_argument("--seconds", type=float, help="of steps, for each run (600)")
    parser.add_argument("--steps", type=int, help="at most (20,000)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--rows", type=int, default=256, help="B")
    parser.add_argument("--labels", type=int, help="labels of the synthetic task (200,000)")
    parser.add_argument("--features", type=int, help="its features (100,000)")
    parser.add_argument("--dim", type=int, help="D, of both tasks")
    parser.add_argument("--judged", type=int, help="rows that judge (2,048)")
    parser.add_argument("--text", help="another text, words split by spaces")
    options = parser.parse_args(arguments)
    short = {"parts": "synthetic", "seconds": 60.0, "labels": 50_000, "judged": 512}
    runs, about = begin(options, short, "extreme")
    default(options, parts="skip-gram,synthetic,periods", scored=1000, seconds=600.0)
    default(options, steps=20_000, labels=200_000, features=100_000, judged=2048)
    records = []
    with bars() as progress:
        cases = cases_of(options, progress)
        for number, case in enumerate(cases):
            record = runs.get(
                classifier.settings_of(case.entrant, case.task, case.plan),
                lambda c=case: classifier.train(c.entrant, c.task, c.plan, progress),  # type: ignore[misc]
            )
            records.append({"part": case.part, **record})
            progress("extreme", number + 1, len(cases))
    results = {**about, "runs": records}
    write(options.out / "extreme.json", results, markdown(results))
    plots.draw_extreme(results, options.out)


def cases_of(options: argparse.Namespace, progress: Progress) -> list[Case]:
    """Every method at every task asked for."""
    plan = Plan(
        rows=options.rows,
        lr=options.rate,
        steps=options.steps,
        seconds=options.seconds,
        judged=options.judged,
        threads=options.threads,
    )
    found: list[Case] = []
    for part in options.parts.split(","):
        task, dim = task_of(part, options, progress)
        own = replace(plan, dim=options.dim or dim)
        for seed in range(1, options.seeds + 1):
            found += [replace_seed(case, seed) for case in _cases(part, task, own, options)]
    return found


def task_of(part: str, options: argparse.Namespace, progress: Progress) -> tuple[Task, int]:
    """The task of a part, and its D."""
    if part != "skip-gram":
        return Synthetic(options.labels, options.features), 128
    corpus = docs(
        options.shared,
        options.cache,
        WORDS,
        progress,
        text=options.text and options.shared.__class__(options.text),
    )
    return SkipGram(corpus), 200


def _cases(part: str, task: Task, plan: Plan, options: argparse.Namespace) -> list[Case]:
    entrants = entrants_of(options)
    if part != "periods":
        return [Case(part, entrant, task, plan) for entrant in entrants]
    tables = [entrant for entrant in entrants if entrant.loss == "lns"]
    return [
        Case(f"{part}: {name}", entrant, task, replace(plan, every=every, growth=growth))
        for entrant in (tables if options.methods else tables[:1])
        for name, (every, growth) in PERIODS.items()
    ]


def replace_seed(case: Case, seed: int) -> Case:
    """The same with another seed."""
    return case._replace(plan=replace(case.plan, seed=seed))


def entrants_of(options: argparse.Namespace) -> list[Entrant]:
    """All of the registry, or those that `--short` has time for."""
    if options.methods:
        return present(parse_all(options.methods))
    names = [name for name in LOSSES if not options.short or name in SHORT]
    found = [each for name in names for each in variants(name, options.scored)]
    published = [each.plus("corrected=false") for each in found if each.loss == "lns"]
    return [each for each in [*found, *published] if each.loss != "chunked"]


def markdown(results: Found) -> str:
    """Conditions, then a row for each run."""
    lines = [
        f"{conditions(results)} Judged by the full softmax on rows that are not learned from. "
        "`reaches` is the second at which a method had the P@1 that full had at its end, and how "
        "many times sooner that is than full's own; ms are means over all steps.",
        "",
        "| task | method | V | D | B | steps | seconds | P@1 | P@3 | P@5 | full loss | reaches "
        "| ms a step | of it re-index |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in results["runs"]:
        settings = run["settings"]
        row = f"| {run['part']} | {settings['method']} | {settings['classes']:,} "
        row += f"| {settings['dim']} | {settings['rows']} "
        if "failed" in run:
            lines.append(f"{row}| {run['failed']} |||||||||")
            continue
        cells = " | ".join(f"{run[key]:.3f}" for key in ("p1", "p3", "p5", "loss"))
        us = run["us"]
        lines.append(
            f"{row}| {run['steps']:,} | {run['seconds']:,.0f} | {cells} "
            f"| {reaches(run, results['runs'])} | {sum(us.values()) / 1000:.2f} "
            f"| {us['index'] / 1000:.2f} |"
        )
    return "\n".join(lines) + "\n"


def reaches(run: Found, runs: Sequence[Found]) -> str:
    """When a run first had full's last P@1, beside when full had it."""
    of = [
        other
        for other in runs
        if other["settings"]["method"] == "full"
        and other["settings"]["task"] == run["settings"]["task"]
        and other["settings"]["seed"] == run["settings"]["seed"]
        and "failed" not in other
    ]
    if not of:
        return ""
    wanted = of[0]["course"][-1]["p1"]
    own, full = first(run["course"], wanted), first(of[0]["course"], wanted)
    if own is None or full is None:
        return "never"
    return f"{own:,.0f} s, {full / max(own, 1e-9):.1f}x"


def first(course: Sequence[Found], wanted: float) -> float | None:
    """Seconds of the first look with that P@1."""
    return next((look["seconds"] for look in course if look["p1"] >= wanted), None)


if __name__ == "__main__":
    main()
