"""Levy, Chen, Ermon 2018, LSH Softmax."""

import math
from itertools import product
from typing import Any

import numpy as np
import torch

from benchmarks.papers.runs import Options, Rows, Run, classes_scored, language_models, make, steps
from benchmarks.race.datasets import load
from logitsieve.training import SampledSoftmax

K, L = 1000, 100  # 10 sqrt V and sqrt V at V = 10,000
PER_ROW = f"lsh:k={K};n_uniform={L};per_row=true"
BATCH = f"lsh:k={K};n_uniform={L}"
SAMPLED = f"n_sampled={K + L}"
METHODS = [
    "full",
    BATCH,
    PER_ROW,
    f"uniform:{SAMPLED}",
    f"uniform:{SAMPLED};in_batch=true",
    f"unigram:{SAMPLED}",
    f"unigram:{SAMPLED};in_batch=true",
    f"log-uniform:{SAMPLED}",
    f"log-uniform:{SAMPLED};in_batch=true",
    "lns:cap=917;n_uniform=183;query=embedding",
    "lns:cap=917;n_uniform=183;query=embedding;in_batch=true",
    f"importance:{SAMPLED}",
    f"nce:{SAMPLED}",
]
RATES = [0.2, 0.4]
ABLATED = [method for method in METHODS[1:9] if not method.startswith("unigram")]  # no counts
SHAPES = ((10_000, 650), (33_000, 650), (44_000, 650))
BATCHES, DRAWS = (16, 64, 280), 6
PROMISED = (0.1, 0.01, 0.001)  # delta of Theorem 5
GUMBEL_CONTEXTS, GUMBEL_DRAWS = 20, 1000


def table_1(options: Options) -> Rows:
    """Perplexities by loss, and the classes that each scores."""
    return language_models(METHODS, RATES, options)


def table_2(options: Options) -> Rows:
    """Milliseconds of a step of one row; NS draws as many classes as LSH looks at, k + l."""
    for classes, dim in SHAPES:
        root = math.isqrt(classes)
        methods = ["full", f"uniform:n_sampled={11 * root}", f"lsh:k={10 * root};n_uniform={root}"]
        yield from steps(methods, classes, dim, 1)


def ablation(options: Options) -> Rows:
    """Error of the gradient in W, for targets drawn from a trained softmax.

    In-batch targets apart from hashing: the tables' set for the batch has all its targets, uniform
    negatives with in_batch have the same ones and no tables, per_row has tables and no such ones.
    """
    data = load(options.data)
    weight, bias = torch.from_numpy(data.weight), torch.from_numpy(data.bias)
    contexts = torch.from_numpy(data.test)
    found = []
    for method, rows in product(ABLATED, BATCHES):
        criterion = make(method, weight.shape[1], len(weight), torch.ones(len(weight)))
        assert isinstance(criterion, SampledSoftmax)
        with torch.no_grad():
            criterion.classes.weight.copy_(weight)
            if criterion.classes.bias is not None:
                criterion.classes.bias.copy_(bias.view_as(criterion.classes.bias))
        criterion.rebuild()
        errors = [error_of(criterion, contexts, rows, seed) for seed in range(DRAWS)]
        hidden_states, target = drawn(contexts, weight, bias, rows, 0)[:2]
        scored = classes_scored(criterion, hidden_states, target)
        found.append(
            {
                "method": method,
                "rows": rows,
                "error": float(np.mean(errors)),
                "classes_of_a_row": scored[0],
                "classes_of_a_step": scored[1],
                "data": data.name,
                "vocab_size": len(weight),
                "dim": weight.shape[1],
            }
        )
        print(found[-1], flush=True)
    return found


def error_of(criterion: SampledSoftmax, contexts: torch.Tensor, rows: int, seed: int) -> float:
    """Return |gradient - the full softmax's| / |the full softmax's|, in W."""
    weight, bias = criterion.export()
    hidden_states, target, true = drawn(contexts, weight, bias, rows, seed)
    criterion.zero_grad()
    criterion(hidden_states, target).backward()
    got: Any = criterion.classes.weight.grad
    got = got.to_dense() if got.is_sparse else got
    return float((got - true).norm() / true.norm())


def drawn(
    contexts: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, rows: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows of contexts, targets drawn from the softmax, and the full gradient in W."""
    random = torch.Generator().manual_seed(seed)
    hidden_states = contexts[torch.randperm(len(contexts), generator=random)[:rows]]
    share = torch.softmax(hidden_states @ weight.T + bias.view(-1), 1)
    target = torch.multinomial(share, 1, generator=random)[:, 0]
    share[torch.arange(rows), target] -= 1
    return hidden_states, target, share.T @ hidden_states / rows


def theorem_5(options: Options) -> Rows:
    """Share of lazy Gumbel draws that differ from the full softmax's, by k and l.

    k best classes, and of the others those with a Gumbel above t = -log(-log(1 - l / C)): a draw
    differs if the best sum of all is of another class. As printed, k = l = sqrt(log 1 / delta);
    what the proof needs is k l = C log 1 / delta.
    """
    data = load(options.data)
    random, classes = np.random.default_rng(0), len(data.weight)
    sizes = [("as printed", delta, math.ceil(math.log(1 / delta) ** 0.5)) for delta in PROMISED]
    sizes += [
        ("k l = C log 1/delta", delta, math.ceil((classes * math.log(1 / delta)) ** 0.5))
        for delta in PROMISED
    ]
    differ = np.zeros((2, len(sizes)))
    for hidden_states in data.test[:: len(data.test) // GUMBEL_CONTEXTS][:GUMBEL_CONTEXTS]:
        real = -np.sort(-(data.weight @ hidden_states + data.bias).astype(np.float64))
        for row, logits in enumerate((real, np.zeros(classes))):
            for _ in range(GUMBEL_DRAWS):
                noise = random.gumbel(size=classes)
                best = int(np.argmax(logits + noise))
                for column, (_, _, k) in enumerate(sizes):
                    lowest = -math.log(-math.log1p(-k / classes))
                    differ[row, column] += best >= k and noise[best] <= lowest
    shares = differ / (GUMBEL_CONTEXTS * GUMBEL_DRAWS)
    return [
        {"data": data.name, "rule": rule, "delta": delta, "k": k, "differ": real, "equal": equal}
        for (rule, delta, k), real, equal in zip(sizes, *shares.tolist(), strict=True)
    ]


RUNS: dict[str, Run] = {
    "table 1": table_1,
    "table 2": table_2,
    "theorem 5": theorem_5,
    "ablation": ablation,
}
