"""The report's picture of the cascade: a screen as more rows are left to its fallback.

Shape letters: B sampled rows, D hidden size, C clusters, K answers a row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from logitsieve.api.results import Float32, Float64
from logitsieve.evaluation.precision import hits
from logitsieve.heads._base.spec import Arrays
from logitsieve.index import Index
from logitsieve.index_builder import report_plots as plots
from logitsieve.index_builder.report_plots import Curve

KS = (1, 5)
POINTS = 100  # of a curve


def cascade(index: Index, hidden_BD: Float32, screen: Arrays) -> Iterator[str]:
    """The section about coverage."""
    curve = trace(index, hidden_BD, screen)
    escalate = index.head("screen").knobs["escalate"]
    k = max(curve.precision)
    place = int(np.abs(curve.coverage - curve.stored).argmin())
    yield "<h2>Cascade</h2>"
    yield (
        "<p>The contexts nearest to their centroids are answered by the screen, the others exactly "
        f"by its fallback. At the stored escalate = {escalate:.4g} the screen answers "
        f"{curve.stored:.1%} of the sampled contexts itself: P@{k} is "
        f"{curve.precision[k][place]:.4f} over all, {curve.scanned[place]:,.0f} rows of W are "
        "looked at. Dashed: the precision of what it answers itself.</p>"
    )
    yield plots.cascade(curve)


def trace(index: Index, hidden_BD: Float32, arrays: Arrays) -> Curve:
    """The curve of the stored screen, whose part is `arrays`, with `escalate` from 1 down to -1."""
    ks = [k for k in KS if k <= index.vocab_size]
    screen = index.head("screen")
    truth = index.head("exact").topk(hidden_BD, max(ks))
    left = screen.with_knobs(escalate=1.0).topk(hidden_BD, max(ks)).scanned
    order_B = np.argsort(-_nearness(hidden_BD, arrays), kind="stable")
    counts = np.unique(np.linspace(1, len(hidden_BD), POINTS).astype(int))
    alone = screen.with_knobs(escalate=-1.0)
    own: dict[int, Float64] = {}
    for k in ks:
        answer = alone.topk(hidden_BD, k)
        own[k] = _running(hits(answer, truth, k)[order_B] / k, counts)
    scanned = _running(answer.scanned[order_B] - left[order_B].astype(np.float64), counts)
    coverage = counts / len(hidden_BD)
    return Curve(
        coverage,
        {k: coverage * mean + (1 - coverage) for k, mean in own.items()},
        own,
        coverage * scanned + float(left.mean()),
        float((~screen.topk(hidden_BD, 1).exact).mean()),
    )


def _nearness(hidden_BD: Float32, arrays: Arrays) -> Float64:
    """[B] the cosine of each context to its best centroid, over the reach of that."""
    centroids_CD = arrays["centroids"]
    lengths_C = np.linalg.norm(centroids_CD, axis=1) * arrays.get("reaches", 1.0)
    scores_BC = hidden_BD @ centroids_CD.T
    lengths_B = np.linalg.norm(hidden_BD, axis=1) * lengths_C[scores_BC.argmax(axis=1)]
    tiny = np.finfo(np.float32).tiny
    return np.asarray(scores_BC.max(axis=1) / np.maximum(lengths_B, tiny), np.float64)


def _running(values_B: np.ndarray, counts: np.ndarray) -> Float64:
    """The mean of the first n values, for each n of `counts`."""
    return np.asarray(np.cumsum(values_B)[counts - 1] / counts)
