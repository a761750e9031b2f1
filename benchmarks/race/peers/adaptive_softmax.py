"""Adaptive softmax, distilled: frequent words in a full first level, rare ones in thin clusters.

Grave et al. 2017, Efficient softmax approximation for GPUs; torch.nn.AdaptiveLogSoftmaxWithLoss. It
starts from W itself (the first level its rows, the clusters their best low-rank products) and is
trained on the fit contexts; targets are drawn from the exact softmax among its ten best words.
To answer, a cluster is opened only if its own probability is above the k-th best word found: none
of its words can be above that. The trade is the number of words in the first level, as in the
comparison by Chen et al. 2019.
Shape letters: B batch rows, D hidden size (with the bias), V vocabulary, K answers, F first level.
"""

from typing import TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.race.methods import Method, Queries, augmented, best_places
from logitsieve.api.results import Float32
from logitsieve.heads import FullHead, Softmax

Labelled: TypeAlias = tuple[Float32, np.ndarray, np.ndarray]
LABELLED, LABELS = 100_000, 10  # contexts to train on, and best words of each
BATCH, LEARNING_RATE = 256, 1e-3
TRAINING_FLOPS = 1e12  # some 20 s; three products of the first level a context
GATE_CONTEXTS = 1000  # that the gates start from


class AdaptiveSoftmax(Method):
    """`first` words in the first level, then a cluster up to five times as many, then the rest."""

    name = "adaptive softmax"
    kind = "low rank"

    def __init__(self, softmax: Softmax, labelled: Labelled, first: int) -> None:
        words, dim = softmax.vocab_size, softmax.dim + 1
        middle = min(5 * first, (first + words) // 2)
        contexts, ids_NL, mass_NL = labelled
        counts_V = np.bincount(ids_NL.ravel(), mass_NL.ravel(), minlength=words)
        self._words_V = np.argsort(-counts_V, kind="stable")  # by place in the levels
        self.built = {"first": first}
        levels = nn.AdaptiveLogSoftmaxWithLoss(
            dim, words, [first, middle], div_value=4.0, head_bias=False
        )
        sample = Queries(softmax.dim)(contexts[:: max(1, len(contexts) // GATE_CONTEXTS)])
        rows_VD = torch.from_numpy(augmented(softmax)[self._words_V])
        _start(levels, rows_VD, [first, middle, words], torch.from_numpy(sample))
        place_of_V = np.empty(words, np.int64)
        place_of_V[self._words_V] = np.arange(words)
        rows = int(min(len(contexts) * 3, TRAINING_FLOPS / (6 * dim * (first + dim))))
        _train(levels, contexts, place_of_V[ids_NL], mass_NL, rows)
        self._levels, self._place_of_V = levels, place_of_V
        self._head = levels.head.weight.detach().numpy()
        self._tails = [
            (down.weight.detach().numpy(), up.weight.detach().numpy())
            for down, up in _tails(levels)
        ]
        self._first, self._starts = first, (first, middle)
        self._queries = Queries(softmax.dim)
        self.nbytes = self._head.nbytes + sum(w.nbytes for tail in self._tails for w in tail)

    def topk(self, hidden_states: Float32, k: int) -> np.ndarray:
        """Plain numpy, as in Chen et al. 2019; clusters take the rows that need them together."""
        queries = self._queries(hidden_states)
        logits_BF = queries @ self._head.T
        best = best_places(logits_BF[:, : self._first], k)
        ids_BK, value_BK = best, np.take_along_axis(logits_BF, best, 1)
        for number, (down, up) in enumerate(self._tails):
            gate_B = logits_BF[:, self._first + number]
            rows = np.flatnonzero(gate_B > value_BK[:, -1])
            if not rows.size:
                continue
            inner = queries[rows] @ down.T @ up.T
            top = inner.max(axis=1, keepdims=True)
            inner -= top + np.log(np.exp(inner - top).sum(axis=1, keepdims=True))
            inner += gate_B[rows, None]
            chosen = best_places(inner, min(k, inner.shape[1]))
            both_ids = np.concatenate([ids_BK[rows], chosen + self._starts[number]], 1)
            both = np.concatenate([value_BK[rows], np.take_along_axis(inner, chosen, 1)], 1)
            keep = best_places(both, k)
            ids_BK[rows] = np.take_along_axis(both_ids, keep, 1)
            value_BK[rows] = np.take_along_axis(both, keep, 1)
        return np.asarray(self._words_V[ids_BK])

    @torch.inference_mode()
    def log_probs(self, hidden_states: Float32, words: np.ndarray) -> np.ndarray:
        """Log-probabilities [B, 1] of words [B, 1], by torch's own module."""
        places = torch.from_numpy(self._place_of_V[words[:, 0]])
        scored = self._levels(torch.from_numpy(self._queries(hidden_states)), places)
        return np.asarray(scored.output[:, None])


def label(softmax: Softmax, fit: Float32) -> Labelled:
    """Spread contexts, the ids [N, 10] of their best words, and those' probabilities."""
    places = np.linspace(0, len(fit) - 1, min(LABELLED, len(fit))).astype(np.int64)
    contexts = np.ascontiguousarray(fit[places])
    top = FullHead(softmax).topk(contexts, LABELS)
    return contexts, top.ids, torch.softmax(torch.from_numpy(top.logits), 1).numpy()


def _tails(levels: nn.AdaptiveLogSoftmaxWithLoss) -> list[tuple[nn.Linear, nn.Linear]]:
    """Down and up projections of each cluster."""
    return [(tail[0], tail[1]) for tail in cast(list[nn.Sequential], levels.tail)]  # type: ignore[misc]


@torch.no_grad()
def _start(
    levels: nn.AdaptiveLogSoftmaxWithLoss, rows_VD: Tensor, ends: list[int], sample_ND: Tensor
) -> None:
    """The first level's rows are W's, a cluster's words a low-rank W.

    A cluster's gate is the least-squares fit of its words' log sum of exponentials.
    """
    first = ends[0]
    levels.head.weight[:first] = rows_VD[:first]
    for number, (down, up) in enumerate(_tails(levels)):
        members = rows_VD[ends[number] : ends[number + 1]]
        mass_N = torch.logsumexp(sample_ND @ members.T, 1, keepdim=True)
        levels.head.weight[first + number] = torch.linalg.lstsq(sample_ND, mass_N).solution[:, 0]
        rank = down.weight.shape[0]
        values, vectors = torch.linalg.eigh(members.T @ members)
        directions = vectors[:, values.argsort(descending=True)[:rank]]
        down.weight.copy_(directions.T)
        up.weight.copy_(members @ directions)


def _train(
    levels: nn.AdaptiveLogSoftmaxWithLoss,
    contexts: Float32,
    places_NL: np.ndarray,
    mass_NL: np.ndarray,
    rows: int,
) -> None:
    """Adam over `rows` contexts in random order, the step falling to nothing.

    The first level's rows stay those of W: trained on so few targets they only become worse.
    """
    random = np.random.default_rng(0)
    steps = max(1, rows // BATCH)
    optimizer = torch.optim.Adam(levels.parameters(), lr=LEARNING_RATE)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    cumulated_NL = mass_NL.cumsum(axis=1)
    ones = np.ones((BATCH, 1), np.float32)
    for _ in range(steps):
        chosen = random.integers(0, len(contexts), BATCH)
        drawn = (random.random((BATCH, 1)) > cumulated_NL[chosen]).sum(axis=1).clip(max=LABELS - 1)
        hidden_states = torch.from_numpy(np.concatenate([contexts[chosen], ones], axis=1))
        optimizer.zero_grad()
        levels(hidden_states, torch.from_numpy(places_NL[chosen, drawn])).loss.backward()
        gates = levels.head.weight.grad
        assert gates is not None
        gates[: levels.shortlist_size] = 0
        optimizer.step()
        falling.step()
