"""What a step costs: `python -m benchmarks.training.steps` (experiment 3).

Forward, backward, optimizer (plain SGD for all) and amortised re-index, each apart, against the
full cross-entropy of torch and the chunked one of this package, in one process and in turns.
One method and one shape are a run, with baselines of its own beside it; finished runs are kept.

parts: batch (V = 250,000 and 1,000,000, D = 512, B = 256), one (B = 1, D = 650: papers/000 Table 2,
which has LSH at 1.6x / 2.4x / 2.3x / 4.1x), kernel (m = 10, B = 10, D = 64: papers/002 Table 2,
which has EXP 32.3 ms and RF 2.4 ms at V = 500,000), growth (what drawing costs by V: log V is
expected), grid (all V x D x B).

Rows of W are a seeded mixture: normal vectors around centres; a context is its target's row and
noise, so that a target has the largest logit about half of the time. Targets fall as 1 / rank.
Writes steps.json, .md, steps.svg and growth.svg.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.race.bars import bars
from benchmarks.training import plots
from benchmarks.training.entrants import Entrant, parse_all, present, scoring, zipf_counts
from benchmarks.training.runs import Found, begin, conditions, default, parser_of, write
from benchmarks.training.stages import STAGES, Stages, keep_memory

EVERY = 50  # steps between re-indexings
BATCHES = 64  # different batches that steps go through
CENTRES = 500
LR = 1e-3
SUBLINEAR = (
    "uniform",
    "lsh",
    "rf",
    "top-k",
    "kmeans",
    "lns:query=label",
    "lns:query=embedding",
    "quadratic",
)


@dataclass(frozen=True)
class Shape:
    """V, D, B; and the classes that a row meets, None for each loss's own default."""

    classes: int
    dim: int
    rows: int
    scored: int | None = None

    @classmethod
    def parse(cls, text: str) -> Shape:
        """`250000x512x256`, or with the scored classes behind."""
        return cls(*(int(part.replace("_", "")) for part in text.split("x")))


PARTS: dict[str, tuple[list[Shape], tuple[str, ...]]] = {
    "batch": ([Shape(250_000, 512, 256), Shape(1_000_000, 512, 256)], SUBLINEAR),
    "one": (
        [Shape(v, 650, 1) for v in (10_000, 33_000, 44_000, 250_000)],
        ("uniform", "lsh", "rf", "top-k", "kmeans"),
    ),
    "kernel": (
        [Shape(v, 64, 10, 10) for v in (10_000, 100_000, 500_000)],
        ("exp", "quadratic", "rf", "uniform"),
    ),
    "growth": ([Shape(2**p, 64, 10, 10) for p in range(10, 21, 2)], ("rf", "quadratic")),
    "grid": (
        [
            Shape(*shape)
            for shape in product(
                (10_000, 33_000, 44_000, 250_000, 500_000, 1_000_000), (64, 512, 650), (1, 10, 256)
            )
        ],
        ("lsh", "rf", "uniform"),
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Time every run that is not kept, write the raw numbers, the table and the pictures."""
    parser = parser_of(__doc__)
    parser.add_argument("--parts", help=f"of {', '.join(PARTS)}; all but grid")
    parser.add_argument("--methods", help="LOSS[:NAME=VALUE;...],... instead of each part's own")
    parser.add_argument("--sizes", help="VxDxB[xSCORED],... instead of each part's own")
    parser.add_argument("--rounds", type=int, help="turns of each contender (7)")
    parser.add_argument("--seconds", type=float, help="a contender's share of a round (0.3)")
    parser.add_argument("--most", type=int, help="leave out shapes of more classes")
    parser.add_argument("--optimizer", choices=("sgd", "adagrad"), default="sgd")
    options = parser.parse_args(arguments)
    short = {"parts": "batch,one,kernel", "rounds": 3, "seconds": 0.2, "most": 250_000}
    runs, about = begin(options, short, "steps")
    default(options, parts="batch,one,kernel,growth", rounds=7, seconds=0.3, most=10**9)
    records = []
    with bars() as progress:
        cases = [case for part in options.parts.split(",") for case in cases_of(part, options)]
        shared = SharedWeights()
        for number, (part, shape, entrant) in enumerate(cases):
            settings = {
                "shape": asdict(shape),
                "method": entrant.label,
                "rounds": options.rounds,
                "seconds": options.seconds,
                "optimizer": options.optimizer,
                "threads": options.threads,
            }
            record = runs.get(settings, lambda s=shape, e=entrant: race(shared, s, e, options))  # type: ignore[misc]
            records.append({"part": part, **record})
            progress("steps", number + 1, len(cases))
    results = {**about, "every": EVERY, "optimizer": options.optimizer, "runs": records}
    write(options.out / "steps.json", results, markdown(results))
    plots.draw_steps(results, options.out)


def cases_of(part: str, options: argparse.Namespace) -> list[tuple[str, Shape, Entrant]]:
    """Each shape with each method of a part."""
    shapes, losses = PARTS[part]
    if options.sizes:
        shapes = [Shape.parse(text) for text in options.sizes.split(",")]
    found = []
    for shape in shapes:
        if shape.classes > options.most:
            continue
        named = parse_all(options.methods) if options.methods else map(Entrant.parse, losses)
        for entrant in present(named):
            bare = shape.scored is not None and not entrant.options
            asked = scoring(entrant.loss, shape.scored or 0) if bare else entrant
            found.append((part, shape, asked))
    return found


class SharedWeights:
    """W [V, D] in memory once: every head of a shape learns on the same storage."""

    def __init__(self) -> None:
        self._of: tuple[int, int] | None = None
        self._weight = torch.empty(0)

    def get(self, shape: Shape) -> Tensor:
        """That of the shape's V and D; another shape's is dropped."""
        if self._of != (shape.classes, shape.dim):
            self._weight = torch.empty(0)
            self._weight = make_weight(shape.classes, shape.dim)
            self._of = (shape.classes, shape.dim)
        return self._weight


def make_weight(classes: int, dim: int) -> Tensor:
    """float32 [V, D]: rows around centres; half of a row's length is its centre's."""
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(min(CENTRES, classes), dim, generator=random)
    weight = torch.randn(classes, dim, generator=random)
    for start in range(0, classes, 1 << 14):
        part = weight[start : start + (1 << 14)]
        of = torch.randint(len(centres), (len(part),), generator=random)
        part.add_(centres[of]).mul_((2 * dim) ** -0.5)
    return weight


def make_batches(weight: Tensor, counts: np.ndarray, rows: int) -> list[tuple[Tensor, Tensor]]:
    """hidden [B, D] that wants a gradient, and target [B]; logits of targets are about 12."""
    random = torch.Generator().manual_seed(1)
    sums = torch.from_numpy(counts).double().cumsum(0)
    batches = []
    for _ in range(BATCHES):
        places = torch.rand(rows, generator=random, dtype=torch.float64) * sums[-1]
        target = torch.searchsorted(sums, places).clamp_(max=len(sums) - 1)
        noise = torch.randn(rows, weight.shape[1], generator=random) * weight.shape[1] ** -0.5
        hidden = 12 * weight[target] + 12 * noise
        batches.append((hidden.requires_grad_(), target))
    return batches


class TorchCrossEntropy(nn.Module):
    """What one writes without this package."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(len(weight)))

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        """The mean loss of hidden [B, D] and target [B]."""
        return functional.cross_entropy(functional.linear(hidden, self.weight, self.bias), target)


class Contender:
    """A head, its optimizer, and the times of its steps."""

    def __init__(self, head: Any, optimizer: str) -> None:
        kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
        self.optimizer = kinds[optimizer](head.parameters(), lr=LR)
        self.stages = Stages(head)
        if hasattr(head, "follow"):
            head.follow(self.optimizer, every=EVERY)
        self.indexed = hasattr(head, "structure") and head.structure is not None
        self.times: dict[str, list[int]] = {stage: [] for stage in STAGES}
        self.made = 0

    def turn(self, batches: list[tuple[Tensor, Tensor]], ns: float) -> None:
        """Steps for about that long, one at least."""
        begun = perf_counter_ns()
        self.one(batches)
        while perf_counter_ns() - begun < ns:
            self.one(batches)

    def one(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        """A step, its times kept."""
        found = self.stages.step(self.optimizer, *batches[self.made % len(batches)])
        self.made += 1
        for stage, taken in found.items():
            self.times[stage].append(taken)

    def finish(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        """Whole periods, two at least: the re-index is shared out over the steps it is for."""
        while self.indexed and (self.made % EVERY or self.made < 2 * EVERY):
            self.one(batches)

    def summary(self) -> dict[str, float]:
        """Microseconds: the median of each stage, the re-index's mean; their sum; and steps."""
        us = {stage: statistics.median(times) / 1000 for stage, times in self.times.items()}
        us["index"] = statistics.fmean(self.times["index"]) / 1000
        return {**us, "step": sum(us.values()), "steps": self.made}


def race(
    shared: SharedWeights, shape: Shape, entrant: Entrant, options: argparse.Namespace
) -> Found:
    """A method beside the baselines, in turns; ratios are over the fastest of these."""
    weight, counts = shared.get(shape), zipf_counts(shape.classes)
    batches = make_batches(weight, counts, shape.rows)
    head, built = make_head(entrant, weight, counts)
    heads = {entrant.label: head, "torch": TorchCrossEntropy(weight)}
    for baseline in present([Entrant("chunked")]):
        heads[baseline.label] = make_head(baseline, weight, counts)[0]
    contenders = {name: Contender(each, options.optimizer) for name, each in heads.items()}
    for contender in contenders.values():
        contender.one(batches)  # compiles, and takes memory for the first time
        contender.times = {stage: [] for stage in STAGES}
    for _ in range(options.rounds):
        for contender in contenders.values():
            contender.turn(batches, options.seconds * 1e9)
    contenders[entrant.label].finish(batches)
    times = {name: contender.summary() for name, contender in contenders.items()}
    best = min((name for name in times if name != entrant.label), key=lambda n: times[n]["step"])
    ratio = times[best]["step"] / times[entrant.label]["step"]
    return {"build_seconds": built, "us": times, "baseline": best, "ratio": ratio}


def make_head(entrant: Entrant, weight: Tensor, counts: Any) -> tuple[Any, float]:
    """A head on the shared rows, sparse gradients where it has them; seconds of its indexing."""
    head: Any = entrant.make(weight.shape[1], counts)
    classes, dim = weight.shape
    head.tie(nn.Embedding(classes, dim, _weight=weight, sparse=head.classes.sparse))
    begun = perf_counter_ns()
    if hasattr(head, "rebuild"):
        head.rebuild()
    return head, (perf_counter_ns() - begun) / 1e9


def markdown(results: Found) -> str:
    """Conditions, then for each run its stages and the ratio."""
    lines = [
        f"{conditions(results)} Update rule {results['optimizer']} for all; rows that moved are "
        f"indexed anew every {results['every']} steps. Microseconds, medians; the re-index is its "
        "mean share of a step. Times as fast: over the faster of torch's cross-entropy and the "
        "chunked one, timed in turns with the method.",
        "",
        "| part | V | D | B | method | proposal | forward | backward | optimizer | re-index "
        "| step | full | times as fast |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in results["runs"]:
        shape, method = run["settings"]["shape"], run["settings"]["method"]
        begin_row = (
            f"| {run['part']} | {shape['classes']:,} | {shape['dim']} | {shape['rows']} | {method} "
        )
        if "failed" in run:
            lines.append(f"{begin_row}| {run['failed']} |||||||| |")
            continue
        us = run["us"][method]
        cells = " | ".join(f"{us[stage]:,.0f}" for stage in (*STAGES, "step"))
        full = f"{run['us'][run['baseline']]['step']:,.0f} ({run['baseline']})"
        lines.append(f"{begin_row}| {cells} | {full} | {run['ratio']:.1f}x |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    keep_memory()
    main()
