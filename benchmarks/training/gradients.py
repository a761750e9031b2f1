"""How right gradients are: `python -m benchmarks.training.gradients` (experiment 2).

A frozen trained softmax (lm-docs-10k-200: V = 10,000, D = 200) and batches of real contexts of
unseen text. Each method's gradients of hidden rows and of W, against those of the full softmax of
the same law (a method with normalised rows is compared with the normalised softmax): cosine and
relative error of single draws, relative error of the mean over draws, which tends to the bias, and
the time of forward and backward pass, all methods in turns. Then (--parts laws) what the methods
draw at the start, in the middle and at the end of a training: papers/003 Figure 3, see laws.py.

d-softmax stays away: it has no rows of D numbers for all classes. Losses that are no softmax over
the same logits (nce) have another gradient by design; their cosine is shown with the others.
Writes gradients.json, .md, gradients.svg and laws.svg.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import backward
from torch.nn import functional

from benchmarks.race.bars import bars
from benchmarks.race.run import spread
from benchmarks.training import laws, plots
from benchmarks.training.entrants import FULL, Entrant, parse_all, present, variants
from benchmarks.training.quality import add_training, default_training
from benchmarks.training.runs import (
    Found,
    begin,
    conditions,
    default,
    integers,
    parser_of,
    write,
)
from logitsieve.api.results import Int64
from logitsieve.training import LOSSES
from logitsieve.training.losses.loss import SoftmaxLoss
from logitsieve.utils.options import Progress

DATA = "lm-docs-10k-200.npz"
AWAY = ("d-softmax",)
ROUND_NS = 50_000_000
Pair = tuple[Tensor, Tensor]  # gradients of hidden [B, D] and of W [V, D], dense


class Frozen(NamedTuple):
    """A trained softmax, how often its classes occur, and batches of contexts with targets."""

    weight: Tensor  # [V, D]
    bias: Tensor  # [V]
    counts: Int64  # [V]
    batches: list[Pair]  # hidden [B, D] and target [B]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, write the raw numbers, the table and the pictures."""
    parser = parser_of(__doc__)
    add_training(parser)
    parser.add_argument("--parts", help="of frozen, laws (both)")
    parser.add_argument("--data", type=Path, help=f"another file like {DATA}")
    parser.add_argument("--methods", help="LOSS[:NAME=VALUE;...],... (all, at --sizes)")
    parser.add_argument("--sizes", type=integers, help="scored classes (100,300,1100)")
    parser.add_argument("--batch", type=int, help="contexts of a batch, B (64)")
    parser.add_argument("--batches", type=int, help="batches (8)")
    parser.add_argument("--draws", type=int, help="steps on each batch (32)")
    parser.add_argument("--rounds", type=int, help="turns of the clock (9)")
    options = parser.parse_args(arguments)
    short = {"sizes": [100, 1100], "batches": 4, "draws": 8, "rounds": 5}
    runs, about = begin(options, {**short, "tokens": 100_000, "valid": 10_000}, "gradients")
    default(options, parts="frozen,laws", sizes=[100, 300, 1100], batch=64, batches=8)
    default(options, draws=32, rounds=9, tokens=600_000)
    default_training(options)
    entrants = entrants_of(options)
    results: Found = {**about, "batch": options.batch, "draws": options.draws}
    with bars() as progress:
        if "frozen" in options.parts:
            results["frozen"] = frozen(runs, entrants, options, progress)
        if "laws" in options.parts:
            results["laws"] = laws.measure(runs, entrants, options, progress)
    write(options.out / "gradients.json", results, markdown(results))
    plots.draw_gradients(results, options.out)


def entrants_of(options: argparse.Namespace) -> list[Entrant]:
    """Every loss that samples, at every size."""
    if options.methods:
        return present(parse_all(options.methods))
    names = [name for name in LOSSES if name not in (*FULL, *AWAY)]
    return present(
        each for name in names for size in options.sizes for each in variants(name, size)
    )


def load(options: argparse.Namespace) -> Frozen:
    """The frozen softmax; counts are those of the targets of its training contexts, and one."""
    path = options.data or options.shared / "data" / DATA
    if not path.exists():
        raise SystemExit(f"{path} is absent: --data names another npz of W, b, H_test, y_test")
    with np.load(path) as file:
        weight, bias = (torch.from_numpy(file[name]).float() for name in ("W", "b"))
        counts = np.bincount(file["y_train"], minlength=len(weight)).astype(np.int64) + 1
        total = options.batch * options.batches
        hidden = torch.from_numpy(spread(file["H_test"], total)).float()
        target = torch.from_numpy(spread(file["y_test"], total)).long()
    parts = zip(torch.split(hidden, options.batch), torch.split(target, options.batch), strict=True)
    return Frozen(weight, bias, counts, list(parts))


def frozen(
    runs: Any, entrants: Iterable[Entrant], options: argparse.Namespace, progress: Progress
) -> list[Found]:
    """A record for each method: its time is of the run in which it was measured, beside full."""
    data, records, entrants = load(options), [], list(entrants)
    for number, entrant in enumerate(entrants):
        settings = {
            "method": entrant.label,
            "data": str(options.data or DATA),
            "classes": len(data.weight),
            "batch": options.batch,
            "batches": options.batches,
            "draws": options.draws,
            "rounds": options.rounds,
            "threads": options.threads,
        }
        records.append(runs.get(settings, lambda e=entrant: compare(e, data, options)))
        progress("gradients", number + 1, len(entrants))
    return records


def compare(entrant: Entrant, data: Frozen, options: argparse.Namespace) -> Found:
    """Errors of one method, and its time beside the full softmax."""
    head = head_of(entrant, data)
    errors = [
        errors_of(head, batch, full_gradients(head, *batch), options.draws)
        for batch in data.batches
    ]
    means = {key: statistics.fmean(each[key] for each in errors) for key in errors[0]}
    return {**means, "us": times(head, data.batches, options.rounds)}


def head_of(entrant: Entrant, data: Frozen) -> SoftmaxLoss:
    """The method with the frozen weights, and an index of those."""
    head = entrant.make(data.weight.shape[1], data.counts)
    set_weights(head, data.weight, data.bias)
    return head


@torch.no_grad()
def set_weights(head: Any, weight: Tensor, bias: Tensor) -> None:
    """Copy W and b into a head, and index them."""
    head.classes.weight.copy_(weight)
    if head.classes.bias is not None:
        head.classes.bias.copy_(bias[:, None])
    if hasattr(head, "rebuild"):
        head.rebuild()


def full_gradients(head: SoftmaxLoss, hidden: Tensor, target: Tensor) -> Pair:
    """Those of the full cross-entropy over the head's own logits."""
    return gradients(head, lambda h: functional.cross_entropy(head.logits(h), target), hidden)


def gradients(head: SoftmaxLoss, loss: Any, hidden: Tensor) -> Pair:
    """Of hidden and of W; those of W dense, whatever the head gives."""
    hidden = hidden.clone().requires_grad_()
    head.zero_grad()
    backward(loss(hidden))
    rows, weight = hidden.grad, head.classes.weight.grad
    assert rows is not None
    assert weight is not None
    return rows, weight.to_dense() if weight.is_sparse else weight.clone()


def errors_of(head: SoftmaxLoss, batch: Pair, full: Pair, draws: int) -> dict[str, float]:
    """Cosine and relative error of a step, and relative error of the mean over all steps."""
    hidden, target = batch
    sums = [torch.zeros_like(part) for part in full]
    found: dict[str, list[float]] = {}
    for _ in range(draws):
        own = gradients(head, lambda h: head(h, target), hidden)
        for name, part, truth, total in zip(("hidden", "weight"), own, full, sums, strict=True):
            total += part
            cosine = functional.cosine_similarity(part.flatten(), truth.flatten(), dim=0)
            found.setdefault(f"{name}_cosine", []).append(float(cosine))
            found.setdefault(f"{name}_error", []).append(relative(part, truth))
    means = {key: statistics.fmean(values) for key, values in found.items()}
    for name, total, truth in zip(("hidden", "weight"), sums, full, strict=True):
        means[f"{name}_error_of_mean"] = relative(total / draws, truth)
    return means


def relative(found: Tensor, truth: Tensor) -> float:
    """The length of the difference over that of the truth."""
    return float((found - truth).norm() / truth.norm())


def times(head: SoftmaxLoss, batches: Sequence[Pair], rounds: int) -> dict[str, float]:
    """Microseconds of a forward and backward pass: medians over turns, and the full one's."""
    own = [(hidden.clone().requires_grad_(), target) for hidden, target in batches]

    def ours(hidden: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = head(hidden, target)
        return loss

    def full(hidden: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(head.logits(hidden), target)

    means: dict[str, list[float]] = {"method": [], "full": []}
    for _ in range(rounds):
        for name, loss in (("method", ours), ("full", full)):
            begun, done = perf_counter_ns(), 0
            while done == 0 or perf_counter_ns() - begun < ROUND_NS:
                hidden, target = own[done % len(own)]
                head.zero_grad()
                hidden.grad = None
                backward(loss(hidden, target))
                done += 1
            means[name].append((perf_counter_ns() - begun) / done / 1000)
    return {name: statistics.median(found) for name, found in means.items()}


def markdown(results: Found) -> str:
    """Conditions, then the errors of each method."""
    lines = [
        f"{conditions(results)} B = {results['batch']}, {results['draws']} steps on each batch. "
        "Against the gradient of the full softmax of the same law; microseconds of a forward and "
        "backward pass, medians, and how many times as fast as the full one in turns with it.",
        "",
        "| method | cosine, hidden | error, hidden | error of the mean | cosine, W | error, W "
        "| error of the mean | µs | times as fast |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in results.get("frozen", ()):
        method = run["settings"]["method"]
        if "failed" in run:
            lines.append(f"| {method} | {run['failed']} |||||||")
            continue
        cells = " | ".join(
            f"{run[f'{name}_{key}']:.3f}"
            for name in ("hidden", "weight")
            for key in ("cosine", "error", "error_of_mean")
        )
        us = run["us"]
        lines.append(
            f"| {method} | {cells} | {us['method']:,.0f} | {us['full'] / us['method']:.1f}x |"
        )
    return "\n".join([*lines, *laws.lines(results.get("laws"))]) + "\n"


if __name__ == "__main__":
    main()
