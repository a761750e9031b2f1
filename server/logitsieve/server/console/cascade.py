"""The cascade: a screen, and its fallback for more and more of the contexts.

Shape letters: B contexts, D hidden size, C clusters, K answers a row.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Float64
from logitsieve.decoding import LocalDecoder
from logitsieve.evaluation.precision import hits
from logitsieve.heads._base.spec import Arrays
from logitsieve.server.console.contexts import MOST_PRODUCTS, kept_contexts
from logitsieve.server.console.parts import read_screen
from logitsieve.server.console.words import Facts

KS = (1, 5)
POINTS = 100  # of a curve


def cascade_facts(decoder: LocalDecoder, hidden: Float32 | None = None) -> Facts:
    """Precision and rows scanned as `escalate` falls from 1 to -1, on `hidden` [B, D].

    Without them, on the contexts that the index keeps. `precision` is of all rows, `own` of those
    that the screen answers itself, `stored` the coverage at the index's knobs. InvalidRequest names
    `model` where there is no screen, or no context.
    """
    index = decoder.index
    screen = read_screen(index)
    if hidden is None:
        hidden = kept_contexts(index, MOST_PRODUCTS // 2)  # W is gone through twice
    if not len(hidden):
        got = f"{index.name}@{index.version}, which keeps none"
        raise InvalidRequest("model", got, "an index that keeps contexts")
    ks = [k for k in KS if k <= index.vocab_size]
    head = index.head("screen")
    truth = index.head("exact").topk(hidden, max(ks))
    left = head.with_knobs(escalate=1.0).topk(hidden, max(ks)).scanned
    order = np.argsort(-_nearness(hidden, screen), kind="stable")
    counts = np.unique(np.linspace(1, len(hidden), POINTS).astype(int))
    alone = head.with_knobs(escalate=-1.0)
    own: dict[int, Float64] = {}
    for k in ks:
        answer = alone.topk(hidden, k)
        own[k] = _running(hits(answer, truth, k)[order] / k, counts)
    scanned = _running(answer.scanned[order] - left[order].astype(np.float64), counts)
    coverage = counts / len(hidden)
    return {
        "model": f"{index.name}@{index.version}",
        "rows": len(hidden),
        "escalate": head.knobs["escalate"],
        "stored": float((~head.topk(hidden, 1).exact).mean()),
        "coverage": coverage.tolist(),
        "precision": {str(k): (coverage * p + 1 - coverage).tolist() for k, p in own.items()},
        "own": {str(k): p.tolist() for k, p in own.items()},
        "scanned": (coverage * scanned + float(left.mean())).tolist(),
    }


def _nearness(hidden: Float32, screen: Arrays) -> Float64:
    """[B] the cosine of each context to its best centroid, over the reach of that."""
    centroids = screen["centroids"]
    lengths_C = np.linalg.norm(centroids, axis=1) * screen.get("reaches", 1.0)
    scores_BC = hidden @ centroids.T
    lengths_B = np.linalg.norm(hidden, axis=1) * lengths_C[scores_BC.argmax(axis=1)]
    tiny = np.finfo(np.float32).tiny
    return np.asarray(scores_BC.max(axis=1) / np.maximum(lengths_B, tiny), np.float64)


def _running(values_B: np.ndarray, counts: np.ndarray) -> Float64:
    """The mean of the first n values, for each n of `counts`."""
    return np.asarray(np.cumsum(values_B)[counts - 1] / counts)
