"""What a method draws, beside what the softmax says: at the start, the middle, the end of training.

Yeh et al. 2021, Learned Negative Sampling with LSH (papers/003), Figure 3. A language model is
trained with the full softmax; at three points its softmax is frozen and every method looks into it,
context by context. Classes are ranked by their logit, the target left out; a draw of a method is
counted at its rank. So a uniform method is a flat line, and the softmax itself falls.

Shape letters: N contexts, V classes, E candidates.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.training import lm
from benchmarks.training.entrants import Entrant
from benchmarks.training.quality import corpus_of
from benchmarks.training.runs import Found, Runs
from logitsieve.api.results import Float64
from logitsieve.training.losses.sampled import SampledSoftmax
from logitsieve.training.losses.targets import Targets
from logitsieve.training.trainer.trainer import Trainer
from logitsieve.utils.options import Progress

POINTS = ("start", "middle", "end")
CONTEXTS, DRAWS = 64, 16
BINS = 24


def measure(
    runs: Runs, entrants: Sequence[Entrant], options: argparse.Namespace, progress: Progress
) -> Found:
    """The expected number of candidates at a rank, by method and point; made once, as one run."""
    corpus = corpus_of(options, options.vocabulary, progress)
    config = lm.config_of(
        Entrant("full"),
        vocabulary=options.vocabulary,
        dim=options.dim,
        streams=options.rows,
        words=options.tokens,
        threads=options.threads,
    )
    chosen = first_sizes(entrants)
    settings = {
        **lm.settings_of(config, corpus),
        "methods": [entrant.label for entrant in chosen],
        "contexts": CONTEXTS,
        "draws": DRAWS,
        "size": options.sizes[0],
    }
    return runs.get(settings, lambda: _train(config, corpus, chosen, options.sizes[0], progress))


def first_sizes(entrants: Sequence[Entrant]) -> list[Entrant]:
    """One entrant a loss, LNS by both queries: the first, which scores the fewest classes."""
    found: dict[str, Entrant] = {}
    for entrant in entrants:
        kind = (entrant.loss, *(each for each in entrant.options if each.startswith("query")))
        found.setdefault("".join(kind), entrant)
    return list(found.values())


def _train(
    config: Any, corpus: Any, entrants: Sequence[Entrant], size: int, progress: Progress
) -> Found:
    trainer = Trainer(config, corpus)
    due = {0: "start", trainer.total // 2: "middle", trainer.total: "end"}
    points = {}
    for step in range(trainer.total + 1):
        if step in due:
            points[due[step]] = _look(trainer, entrants, size)
        if step < trainer.total:
            trainer.step()
        progress("training looked into", step, trainer.total)
    return {"points": points}


@torch.no_grad()
def _look(trainer: Trainer, entrants: Sequence[Entrant], draws: int) -> Found:
    hidden_ND, target_N = contexts(trainer)
    exported = trainer.head.export()
    counts = np.maximum(trainer.corpus.counts, 1)
    edges = rank_edges(len(counts))
    found: Found = {"edges": edges.tolist(), "methods": {}}
    for entrant in entrants:
        head = entrant.make(hidden_ND.shape[1], counts)
        if not isinstance(head, SampledSoftmax):
            continue
        head.classes.weight.copy_(exported.weight)
        if head.classes.bias is not None:
            head.classes.bias.copy_(exported.bias[:, None])
        if head.structure is not None:
            head.rebuild()
        found["methods"][entrant.label] = histogram(head, hidden_ND, target_N, edges).tolist()
    found["methods"]["softmax"] = softmax_histogram(
        hidden_ND @ exported.weight.T + exported.bias, target_N, edges, draws
    ).tolist()
    return found


def contexts(trainer: Trainer) -> tuple[Tensor, Tensor]:
    """Hidden rows [N, D] and next words [N], spread over the text that judges."""
    ids = torch.from_numpy(np.asarray(trainer.corpus.valid).astype(np.int64))
    trainer.model.eval()
    hidden, _ = trainer.model.hidden(ids[None, :-1][:, :2048])
    places = torch.linspace(0, hidden.shape[1] - 1, CONTEXTS).long()
    return hidden[0, places], ids[1:][places]


def rank_edges(classes: int) -> Float64:
    """Bins of ranks 0 .. V-2 that widen as a geometric series, each at least one rank."""
    return np.unique(np.geomspace(1, classes, BINS + 1).round()) - 1


def histogram(head: SampledSoftmax, hidden_ND: Tensor, target_N: Tensor, edges: Float64) -> Float64:
    """Candidates of a context at one rank, on average, in each bin."""
    found = np.zeros(len(edges) - 1)
    ranks_NV = ranks_of(head.logits(hidden_ND), target_N)
    prepared_ND = head.prepare(hidden_ND)
    for row in range(len(hidden_ND)):
        targets = Targets(torch.zeros(1, dtype=torch.int64), target_N[row : row + 1], 1, True)
        for _ in range(DRAWS):
            proposed = head.propose(prepared_ND[row : row + 1], targets, head.random.next())
            ids = proposed.ids[proposed.ids != target_N[row]]
            found += np.histogram(ranks_NV[row, ids.numpy()], edges)[0]
    return found / (len(hidden_ND) * DRAWS) / np.diff(edges)


def softmax_histogram(x_NV: Tensor, target_N: Tensor, edges: Float64, draws: int) -> Float64:
    """`draws` of the softmax without the target, at one rank, on average."""
    x_NV = x_NV.clone().scatter_(1, target_N[:, None], -torch.inf)
    p_NV = x_NV.double().softmax(1).sort(1, descending=True).values.mean(0).numpy()
    sums = np.concatenate([[0], p_NV.cumsum()])
    mass: Float64 = np.diff(sums[edges.astype(np.int64)])
    return draws * mass / np.diff(edges)


def ranks_of(x_NV: Tensor, target_N: Tensor) -> np.ndarray:
    """The rank of each class by its logit [N, V], best 0, the target last."""
    x_NV = x_NV.clone().scatter_(1, target_N[:, None], -torch.inf)
    order = x_NV.argsort(1, descending=True)
    ranks = torch.empty_like(order)
    ranks.scatter_(1, order, torch.arange(x_NV.shape[1]).expand_as(order))
    return ranks.numpy()


def lines(found: Found | None) -> list[str]:
    """A table: candidates among the ten best, as a multiple of an even share, at each point."""
    if not found or "failed" in found:
        return []
    points = found["points"]
    methods = points["end"]["methods"]
    table = [
        "",
        "Candidates of rank 0 to 9 that a context gets, at three points of a training:",
        "",
        f"| method | {' | '.join(POINTS)} |",
        "|---|---|---|---|",
    ]
    for method in methods:
        cells = [f"{best_ten(points[point], method):.3f}" for point in POINTS]
        table.append(f"| {method} | {' | '.join(cells)} |")
    return table


def best_ten(point: Found, method: str) -> float:
    """The expected number of candidates of the first ten ranks."""
    edges, found = np.array(point["edges"]), np.array(point["methods"][method])
    widths = np.clip(np.minimum(edges[1:], 10) - edges[:-1], 0, None)
    return float((widths * found).sum())
