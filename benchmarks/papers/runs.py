"""What the papers' experiments share: trainings, times of a step, and the classes that are scored.

Shape letters: B rows of a step, D hidden size, V classes, P candidates of all rows.
"""

import math
import statistics
from argparse import Namespace
from collections.abc import Callable, Iterable
from time import process_time
from typing import Any, TypeAlias

import torch
from torch import Tensor

from demo.excerpt import EXCERPT
from logitsieve.api.errors import TrainingFailed
from logitsieve.training import LOSSES, SampledSoftmax, SoftmaxLoss, TrainConfig
from logitsieve.training.autograd.batch import SharedCandidates, read_batch
from logitsieve.training.losses.registry import read_options
from logitsieve.training.trainer.corpus import Corpus, TextStreams, encode
from logitsieve.training.trainer.trainer import Trainer

STREAMS, STEPS = 8, 35  # words of a step, B = 280
IGNORED = -100
STEPS_TIMED = 60

Rows: TypeAlias = Iterable[dict[str, Any]]
Options: TypeAlias = Namespace  # of the command, which has their meaning
Run: TypeAlias = Callable[[Options], Rows]


def make(method: str, dim: int, classes: int, counts: Tensor | None = None) -> SoftmaxLoss:
    """Return the loss of "name" or of "name:option=value;option=value"."""
    name, options = parsed(method)
    return LOSSES[name](dim, classes, class_counts=counts, **read_options(name, options))


def parsed(method: str) -> tuple[str, tuple[str, ...]]:
    name, _, options = method.partition(":")
    return name, tuple(filter(None, options.split(";")))


def classes_scored(
    criterion: SoftmaxLoss, hidden_states: Tensor, target: Tensor
) -> tuple[int, int]:
    """Return the classes in a row's loss, on average, and in the whole batch's."""
    if not isinstance(criterion, SampledSoftmax):
        return criterion.n_classes, criterion.n_classes
    batch = read_batch(hidden_states, target, criterion.in_features, criterion.n_classes, IGNORED)
    with torch.no_grad():
        drawn = criterion.propose(criterion.prepare(batch.hidden_states), batch.targets)
    together = len(torch.unique(torch.cat([drawn.ids.cpu(), batch.targets.classes])))
    if isinstance(drawn, SharedCandidates):
        ids = torch.unique(drawn.ids.cpu())
        others = (~torch.isin(batch.targets.classes, ids)).float().mean()
        return round(len(ids) + float(others)), together
    rows = torch.arange(batch.targets.count).repeat_interleave(drawn.offsets.cpu().diff())
    pairs = torch.unique(rows * criterion.n_classes + drawn.ids.cpu())
    return round(len(pairs) / batch.targets.count) + 1, together


def language_models(methods: list[str], rates: list[float], options: Options) -> Rows:
    """Train an LSTM with each loss: one seed at each rate, the others at the best of these."""
    corpus = encode(TrainConfig(text=EXCERPT))
    for method in methods:
        tried = [trained(method, rate, 1, corpus, options.words) for rate in rates]
        best = min(tried, key=lambda row: float(row["perplexity"]))
        others = range(2, options.seeds + 1)
        seeds = [best, *(trained(method, best["rate"], n, corpus, options.words) for n in others)]
        perplexities = [row["perplexity"] for row in seeds]
        yield {
            **best,
            "perplexity": statistics.mean(perplexities),
            "perplexities": perplexities,
            "cpu_seconds": statistics.mean(row["cpu_seconds"] for row in seeds),
        }


def trained(method: str, rate: float, seed: int, corpus: Corpus, words: int) -> dict[str, Any]:
    """Train with one loss at one rate; the perplexity is the full softmax's, on held-out text."""
    name, loss_option = parsed(method)
    config = TrainConfig(
        loss=name,
        loss_option=loss_option,
        head_lr=rate,
        tied=False,
        batch_size=STREAMS,
        bptt=STEPS,
        words=words,
        seed=seed,
    )
    trainer, start = Trainer(config, corpus), process_time()
    try:
        while trainer.status.steps < trainer.status.total:
            trainer.step()
        reached = trainer.validate()
    except TrainingFailed:
        reached = math.inf
    seconds = process_time() - start
    inputs, targets = TextStreams(corpus.train, STREAMS).read(0, STEPS)
    with torch.no_grad():
        hidden_states = trainer.model.hidden_states(inputs)[0].flatten(0, 1)
    row, batch = classes_scored(trainer.loss, hidden_states, targets.flatten())
    return {
        "method": method,
        "rate": rate,
        "perplexity": reached,
        "cpu_seconds": seconds,
        "classes_of_a_row": row,
        "classes_of_a_step": batch,
        "vocab_size": len(corpus.vocabulary),
        "dim": TrainConfig().dim,
        "words": words,
    }


def steps(methods: list[str], classes: int, dim: int, rows: int, *, forward: bool = False) -> Rows:
    """CPU time of each loss's steps on random rows: forward alone, or with update and index."""
    torch.manual_seed(0)
    hidden_states = torch.randn(rows, dim)
    counts = 1e9 / torch.arange(1.0, classes + 1)
    for method in methods:
        criterion = make(method, dim, classes, counts)
        optimizer = torch.optim.SGD(criterion.parameters(), 0.01)
        criterion.track(optimizer, every=50)
        times = []
        for number in range(STEPS_TIMED):
            target = torch.randint(classes, (rows,))
            inputs = hidden_states.roll(number, 1).requires_grad_(not forward)
            start = process_time()
            loss = criterion(inputs, target)
            if not forward:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            times.append(process_time() - start)
        # A mean, so that updates of an index are in it; the first steps warm up.
        ms = 1e3 * (statistics.median if forward else statistics.mean)(times[5:])
        yield {"method": method, "vocab_size": classes, "dim": dim, "rows": rows, "ms": ms}
