"""What the papers' experiments share: trainings, times of a step, and the classes that are scored.

Shape letters: B rows of a step, D hidden size, V classes, P candidates of all rows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from demo.excerpt import EXCERPT
from logitsieve.api.errors import TrainingFailed
from logitsieve.training import LOSSES, SampledSoftmax, SoftmaxLoss
from logitsieve.training.autograd.batch import SharedCandidates, read_batch
from logitsieve.training.config import TrainConfig
from logitsieve.training.losses.registry import read_options
from logitsieve.training.trainer.corpus import Corpus, TextStreams, encode
from logitsieve.training.trainer.trainer import Trainer

STREAMS, STEPS = 8, 35  # words of a step, B = 280
IGNORED = -100
STEPS_TIMED = 60

Rows: TypeAlias = list[dict[str, Any]]


class Options(NamedTuple):
    """Sizes of an experiment, and where its data are."""

    words: int
    seeds: int
    seconds: float
    data: str
    shared: Path
    cache: Path


Run: TypeAlias = Callable[[Options], Rows]


def make(method: str, dim: int, classes: int, counts: Tensor | None = None) -> SoftmaxLoss:
    """Return the loss of "name" or of "name:option=value;option=value"."""
    name, options = parsed(method)
    return LOSSES[name](dim, classes, class_counts=counts, **read_options(name, options))


def parsed(method: str) -> tuple[str, tuple[str, ...]]:
    name, _, options = method.partition(":")
    return name, tuple(filter(None, options.split(";")))


def classes_scored(criterion: SoftmaxLoss, hidden: Tensor, target: Tensor) -> tuple[int, int]:
    """Return the classes in a row's loss, on average, and in the whole batch's."""
    if not isinstance(criterion, SampledSoftmax):
        return criterion.n_classes, criterion.n_classes
    batch = read_batch(hidden, target, criterion.in_features, criterion.n_classes, IGNORED)
    with torch.no_grad():
        drawn = criterion.propose(criterion.prepare(batch.hidden), batch.targets)
    together = len(torch.unique(torch.cat([drawn.ids.cpu(), batch.targets.classes])))
    if isinstance(drawn, SharedCandidates):
        ids = torch.unique(drawn.ids.cpu())
        others = (~torch.isin(batch.targets.classes, ids)).float().mean()
        return round(len(ids) + float(others)), together
    rows = torch.arange(batch.targets.count).repeat_interleave(drawn.offsets.cpu().diff())
    pairs = torch.unique(rows * criterion.n_classes + drawn.ids.cpu())
    return round(len(pairs) / batch.targets.count) + 1, together


def language_models(methods: list[str], rates: list[float], options: Options) -> Rows:
    """Train an LSTM with each loss; return the best rate of each, by its mean perplexity."""
    corpus = encode(TrainConfig(text=EXCERPT))
    found = []
    for method in methods:
        tried = [trained(method, rate, corpus, options) for rate in rates]
        found.append(min(tried, key=lambda row: float(row["perplexity"])))
        print(found[-1], flush=True)
    return found


def trained(method: str, rate: float, corpus: Corpus, options: Options) -> dict[str, Any]:
    """Train with one loss at one rate; perplexities are the full softmax's, on held-out text."""
    name, loss_option = parsed(method)
    reached, seconds = [], []
    for seed in range(1, options.seeds + 1):
        config = TrainConfig(
            loss=name,
            loss_option=loss_option,
            head_lr=rate,
            tied=False,
            streams=STREAMS,
            steps=STEPS,
            words=options.words,
            seed=seed,
        )
        trainer = Trainer(config, corpus)
        try:
            while trainer.status.steps < trainer.status.total:
                trainer.step()
            reached.append(trainer.validate())
        except TrainingFailed:
            reached.append(math.inf)
        seconds.append(trainer.status.seconds)
    inputs, targets = TextStreams(corpus.train, STREAMS).read(0, STEPS)
    with torch.no_grad():
        hidden = trainer.model.hidden(inputs)[0].flatten(0, 1)
    row, batch = classes_scored(trainer.loss, hidden, targets.flatten())
    return {
        "method": method,
        "rate": rate,
        "perplexity": statistics.mean(reached),
        "perplexities": reached,
        "seconds": statistics.mean(seconds),
        "classes_of_a_row": row,
        "classes_of_a_step": batch,
        "vocab_size": len(corpus.vocabulary),
        "dim": TrainConfig().dim,
        "words": options.words,
    }


def steps(
    methods: list[str], classes: int, dim: int, rows: int, *, forward: bool = False
) -> Iterator[dict[str, Any]]:
    """Time the steps of each loss on random rows: forward alone, or with the update and index."""
    torch.manual_seed(0)
    hidden = torch.randn(rows, dim)
    counts = 1e9 / torch.arange(1.0, classes + 1)
    for method in methods:
        criterion = make(method, dim, classes, counts)
        optimizer = torch.optim.SGD(criterion.parameters(), 0.01)
        criterion.track(optimizer, every=50)
        times = []
        for number in range(STEPS_TIMED):
            target = torch.randint(classes, (rows,))
            inputs = hidden.roll(number, 1).requires_grad_(not forward)
            start = perf_counter()
            loss = criterion(inputs, target)
            if not forward:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            times.append(perf_counter() - start)
        # A mean, so that updates of an index are in it; the first steps warm up.
        ms = 1e3 * (statistics.median if forward else statistics.mean)(times[5:])
        yield {"method": method, "vocab_size": classes, "dim": dim, "rows": rows, "ms": ms}


def classifiers(
    methods: list[str], classes: int, rows: int, options: Options, every: int = 50
) -> Rows:
    """Train a classifier of noisy prototypes with each loss for the same seconds.

    One label a row, drawn by Zipf's law over prototypes in clusters of confusable ones; a layer of
    128 numbers. P@1 is the full softmax's on rows that were not trained on.
    """
    dim, found = 128, []
    random = np.random.default_rng(0)
    centers = random.standard_normal((max(classes // 20, 1), 64))
    near = centers[np.arange(classes) % len(centers)]
    prototypes = torch.from_numpy(near + 0.7 * random.standard_normal(near.shape)).float()
    law = 1 / torch.arange(10.0, classes + 10)
    for method in methods:
        torch.manual_seed(0)

        def draw(count: int) -> tuple[Tensor, Tensor]:
            target = torch.multinomial(law, count, replacement=True)
            return prototypes[target] + torch.randn(count, 64), target

        unseen = draw(2000)
        layer = torch.nn.Sequential(torch.nn.Linear(64, dim), torch.nn.ReLU())
        criterion = make(method, dim, classes, law * 1e6)
        body = torch.optim.Adam(layer.parameters(), 1e-3)
        sparse = torch.optim.SparseAdam if criterion.classes.sparse else torch.optim.Adam
        head: torch.optim.Optimizer = sparse(list(criterion.parameters()), 1e-3)
        criterion.track(head, every=every)
        spent, count = 0.0, 0
        while spent < options.seconds:
            inputs, target = draw(rows)
            start = perf_counter()
            body.zero_grad()
            head.zero_grad()
            criterion(layer(inputs), target).backward()
            body.step()
            head.step()
            spent, count = spent + perf_counter() - start, count + 1
        with torch.no_grad():
            hidden = layer(unseen[0])
            right = (criterion.predict(hidden) == unseen[1]).float().mean()
            scored = classes_scored(criterion, layer(inputs), target)
        found.append(
            {
                "method": method,
                "vocab_size": classes,
                "dim": dim,
                "rows": rows,
                "every": every,
                "steps": count,
                "seconds": spent,
                "p1": float(right),
                "classes_of_a_row": scored[0],
                "classes_of_a_step": scored[1],
            }
        )
        print(found[-1], flush=True)
    return found
