"""Contexts that gather around topics, as those of language models do, and their exact labels."""

from collections.abc import Mapping

import numpy as np

from logitsieve.evaluation.precision import lower_bound
from logitsieve.heads import Softmax
from logitsieve.index_builder.contexts import Contexts
from logitsieve.index_builder.fitting import FitInputs
from logitsieve.index_builder.screen.partition import Partition, route_block
from logitsieve.index_builder.screen.training import CascadePlan
from tests.synthetic import make_head, make_softmax


def make_contexts(
    rows: int, dim: int = 16, topics: int = 12, noise: float = 0.35, seed: int = 3
) -> np.ndarray:
    """float32 [rows, dim]: one of `topics` directions, plus noise."""
    random = np.random.default_rng(seed)
    centers = random.standard_normal((topics, dim)) * 2
    chosen = centers[random.integers(topics, size=rows)]
    return (chosen + noise * random.standard_normal((rows, dim))).astype(np.float32)


def routed(contexts: Contexts, centroids: np.ndarray) -> np.ndarray:
    """[N] the cluster of each context."""
    return np.concatenate([route_block(centroids, block) for block in contexts.blocks()])


def make_inputs(
    rows: int = 1500,
    heldout: int = 500,
    depth: int = 5,
    vocab_size: int = 200,
    topics: int = 12,
    noise: float = 0.35,
) -> tuple[Softmax, FitInputs]:
    """A softmax over `vocab_size` words and everything a fit needs."""
    softmax = make_softmax(vocab_size=vocab_size, dim=16)
    hidden_states = make_contexts(rows + heldout, topics=topics, noise=noise)
    labels = make_head("full", softmax).topk(hidden_states, max(10, depth)).ids
    return softmax, FitInputs(
        softmax=softmax,
        train=Contexts([hidden_states[:rows]]),
        labels=labels[:rows, :depth].astype(np.uint16),
        heldout=Contexts([hidden_states[rows:]]),
        heldout_labels=labels[rows:].astype(np.uint16),
        sample=hidden_states[:rows],
        sample_rows=np.arange(rows),
    )


def escalated_hits(partition: Partition, plan: CascadePlan) -> np.ndarray:
    """bool [H, K]: what is found of the exact labels at a plan, all where rows are escalated."""
    keep = partition.knapsack.select(plan.budget)
    below = partition.heldout_cosines < plan.escalate
    return partition.heldout_hits(keep, plan.probes) | below[:, None]


def lowest(hits: np.ndarray, target: Mapping[str, float]) -> dict[str, float]:
    """The lower bounds of the precisions of `target`, by their names."""
    return {name: lower_bound(hits[:, : int(name[1:])].mean(axis=1)) for name in target}
