"""The screen of an index: its clusters and lists, and how it treats contexts.

Shape letters: B contexts, D hidden size, C clusters, V vocabulary, P probes, K labels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Bool, Float32, Float64, Int64
from logitsieve.decoding import LocalDecoder
from logitsieve.evaluation.precision import block_means, summarize
from logitsieve.heads._base.spec import Arrays
from logitsieve.index import Index
from logitsieve.server.console.contexts import MOST_PRODUCTS, kept_contexts
from logitsieve.server.console.parts import read_screen
from logitsieve.server.console.words import Facts, word_facts

LABELS = 5  # K: the best words that lists should hold
NEAR = 0.05  # of the best cluster's score: a second one so close is a border
MOST_WORDS = 200  # of a list, at a time
MOST_SIZES = 4096  # of lists, the longest first


class Route(NamedTuple):
    clusters: Int64  # [B, P] best first
    margin: Float64  # [B] by how much of its size the best score exceeds the second
    escalated: Bool  # [B] left to the fallback


def route(screen: Arrays, hidden: Float32, probes: int, escalate: float) -> Route:
    """The clusters of contexts [B, D], in float64: ties aside, those of the kernel."""
    centroids = screen["centroids"].astype(np.float64)
    rows = hidden.astype(np.float64)
    scores = rows @ centroids.T
    probes = min(probes, scores.shape[1])
    order = np.argsort(-scores, axis=1, kind="stable")[:, : max(probes, 2)]
    ranked = np.take_along_axis(scores, order, axis=1)
    lengths = np.linalg.norm(centroids, axis=1) * screen.get("reaches", 1.0)
    reach = np.linalg.norm(rows, axis=1) * lengths[order[:, 0]]
    gap = ranked[:, 0] - ranked[:, -1 if ranked.shape[1] == 1 else 1]
    margin = gap / np.maximum(np.abs(ranked[:, 0]), np.finfo(np.float64).tiny)
    escalated = (ranked[:, 0] < escalate * reach) & (escalate > -1)
    return Route(order[:, :probes], margin, escalated)


def screen_facts(decoder: LocalDecoder, hidden: Float32 | None = None) -> Facts:
    """Lengths of the lists, and what becomes of `hidden` [B, D], or else of the kept contexts.

    InvalidRequest without a screen.
    """
    index = decoder.index
    screen = read_screen(index)
    sizes = np.diff(screen["offsets"])
    knobs = dict(index.head("screen").knobs)
    listed = len(np.unique(screen["ids"]))
    return {
        "model": f"{index.name}@{index.version}",
        "vocab_size": index.vocab_size,
        "knobs": knobs,
        "clusters": len(sizes),
        "mean": float(sizes.mean()),
        "median": float(np.median(sizes)),
        "longest": int(sizes.max()),
        "sizes": np.sort(sizes)[::-1][:MOST_SIZES].tolist(),
        "largest": _largest(sizes),
        "listed": listed,
        "contexts": _coverage(
            index, screen, knobs, kept_contexts(index, MOST_PRODUCTS) if hidden is None else hidden
        ),
    }


def cluster_facts(decoder: LocalDecoder, number: int, start: int) -> Facts:
    """Words of a list, those that few other lists hold first; InvalidRequest names `number`."""
    index = decoder.index
    screen = read_screen(index)
    offsets, ids = screen["offsets"], screen["ids"]
    if not 0 <= number < len(offsets) - 1:
        raise InvalidRequest("number", number, f"a cluster, 0 to {len(offsets) - 2}")
    listed = ids[offsets[number] : offsets[number + 1]]
    lists = np.bincount(ids, minlength=index.vocab_size)[listed]
    order = np.argsort(lists, kind="stable")[start : start + MOST_WORDS]
    words = word_facts(index, listed[order].tolist())
    for word, count in zip(words, lists[order].tolist(), strict=True):
        word["lists"] = count
    return {"cluster": number, "size": len(listed), "start": start, "words": words}


def _largest(sizes: Int64) -> list[Facts]:
    order = np.argsort(-sizes, kind="stable")[:50]
    return [{"cluster": int(number), "size": int(sizes[number])} for number in order]


def _coverage(
    index: Index, screen: Arrays, knobs: dict[str, float], hidden: Float32
) -> Facts | None:
    """Shares of contexts [B, D], and of their best words, that the lists hold; None if B is 0."""
    if not len(hidden):
        return None
    way = route(screen, hidden, int(knobs["probes"]), knobs["escalate"])
    labels = index.head("exact").topk(hidden, min(LABELS, index.vocab_size)).ids
    offsets, ids = screen["offsets"], screen["ids"]
    held = np.zeros(labels.shape, np.bool_)
    candidates = np.zeros(len(hidden))
    for row, clusters in enumerate(way.clusters):
        united = np.unique(np.concatenate([ids[offsets[c] : offsets[c + 1]] for c in clusters]))
        held[row], candidates[row] = np.isin(labels[row], united), len(united)
    shares = held.mean(axis=1)
    blocks = summarize(shares)
    met = np.bincount(way.clusters[:, 0], minlength=len(offsets) - 1)
    return {
        "rows": len(hidden),
        "labels": labels.shape[1],
        "best_listed": float(held[:, 0].mean()),
        "labels_listed": float(held.mean()),
        "blocks": block_means(shares).tolist(),
        "worst": blocks.worst,
        "uneven": blocks.uneven,
        "candidates": float(candidates.mean()),
        "near": float((way.margin < NEAR).mean()),
        "near_margin": NEAR,
        "escalated": float(way.escalated.mean()),
        "met": int((met > 0).sum()),
        "margins": np.sort(way.margin).tolist(),
        "by_cluster": [
            {"cluster": int(c), "contexts": int(met[c])} for c in np.argsort(-met)[:20] if met[c]
        ],
    }
