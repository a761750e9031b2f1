"""Statistics of a softmax that synthetic ones share.

lm_statistics.json has those of lm-docs-10k-200, `measure(W, b, H_train, H_test[::5])`: curves and
scalars, and no weight or context of it.
Shape letters: N contexts, D hidden size, V vocabulary.
"""

from dataclasses import dataclass

import faiss
import numpy as np

from logitsieve.api.results import Float32

KNOTS = 25  # of the curves over log rank
CLUSTERS = (20, 100, 400)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Spectra are shares of variance, descending; curves run over log(1 + rank) / log V."""

    weight_spectrum: list[float]
    hidden_spectrum: list[float]
    aligned: float  # share of H's variance in the first tenth of W's eigenvectors
    hidden_norm2: float  # E ||h||^2
    mean_share: float  # ||E h||^2 of it
    clusters: list[float]
    explained: list[float]  # mean squared cosine to the centroid, by number of clusters
    norms: list[float]  # ||w|| by rank
    norm_spread: float  # standard deviation of log ||w|| around that curve
    biases: list[float]  # b by rank
    log_probabilities: list[float]  # log of the mean probability by rank
    top1: float  # mean probability of the best word
    entropy: float  # nats


def measure(weight: Float32, bias: Float32, fit: Float32, judged: Float32) -> Statistics:
    """Spectra and clusters of `fit` contexts, probabilities over `judged` ones."""
    sample = weight[:: max(1, len(weight) // 50_000)].astype(np.float64)
    values_D, vectors_DD = np.linalg.eigh(np.cov(sample.T))
    hidden_cov = np.cov(fit.T.astype(np.float64))
    energy_D = np.einsum("dj,de,ej->j", vectors_DD, hidden_cov, vectors_DD, optimize=True)[::-1]
    hidden_values = np.linalg.eigvalsh(hidden_cov)[::-1]
    norm_V = np.linalg.norm(weight, axis=1)
    norms = by_rank(norm_V)
    places = np.log1p(np.arange(len(weight))) / np.log(len(weight))
    off_curve = np.log(norm_V) - np.log(np.interp(places, np.linspace(0, 1, KNOTS), norms))
    norm2 = float((fit.astype(np.float64) ** 2).sum(axis=1).mean())
    popular_V, top1, entropy = probabilities(weight, bias, judged)
    return Statistics(
        weight_spectrum=shares(values_D[::-1]),
        hidden_spectrum=shares(hidden_values),
        aligned=float(energy_D[: len(energy_D) // 10].sum() / energy_D.sum()),
        hidden_norm2=norm2,
        mean_share=float((fit.mean(axis=0, dtype=np.float64) ** 2).sum() / norm2),
        clusters=[float(count) for count in CLUSTERS],
        explained=[explained(fit, clusters) for clusters in CLUSTERS],
        norms=norms,
        norm_spread=float(off_curve.std()),
        biases=by_rank(bias),
        log_probabilities=np.log(by_rank(popular_V)).tolist(),
        top1=top1,
        entropy=entropy,
    )


def shares(values: np.ndarray) -> list[float]:
    """Shares of the sum; never zero, so that a logarithm can be taken."""
    positive = np.maximum(values, 1e-9 * values[0])
    return list((positive / positive.sum()).tolist())


def by_rank(values_V: np.ndarray) -> list[float]:
    """Means about knots that are even in log rank: one knot for each of 25 places."""
    places = np.log1p(np.arange(len(values_V))) / np.log(len(values_V))
    knots = np.linspace(0, 1, KNOTS)
    edges = np.append(knots, 1 + knots[1]) - knots[1] / 2
    counts, sums = np.histogram(places, edges)[0], np.histogram(places, edges, weights=values_V)[0]
    known = counts > 0
    return list(np.interp(knots, knots[known], sums[known] / counts[known]).tolist())


def probabilities(
    weight: Float32, bias: Float32, judged: Float32
) -> tuple[np.ndarray, float, float]:
    """Mean probability of each word, mean of the best one, mean entropy."""
    popular_V, top1, entropy = np.zeros(len(weight)), 0.0, 0.0
    for start in range(0, len(judged), 100):
        logits = (judged[start : start + 100] @ weight.T + bias).astype(np.float64)
        mass, best, spread = softmax(logits)
        popular_V += mass.sum(axis=0)
        top1 += float(best.sum())
        entropy += float(spread.sum())
    return popular_V / len(judged), top1 / len(judged), entropy / len(judged)


def softmax(logits_NV: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities [N, V], the best one of each row, and entropies in nats."""
    shifted = logits_NV - logits_NV.max(axis=1, keepdims=True)
    mass = np.exp(shifted)
    total = mass.sum(axis=1, keepdims=True)
    mass /= total
    return mass, 1 / total[:, 0], np.log(total[:, 0]) - np.einsum("nv,nv->n", mass, shifted)


def explained(contexts: Float32, clusters: int) -> float:
    """Share of the energy of unit contexts that their spherical centroid accounts for."""
    unit_ND = contexts / np.linalg.norm(contexts, axis=1, keepdims=True)
    means = faiss.Kmeans(unit_ND.shape[1], clusters, niter=15, spherical=True, seed=1)
    means.cp.max_points_per_centroid = len(unit_ND)
    means.cp.min_points_per_centroid = 1
    means.train(unit_ND)
    cosine_N, _ = means.index.search(unit_ND, 1)
    return float((cosine_N**2).mean())


def side_by_side(real: Statistics, got: Statistics) -> str:
    """A table of both: numbers, and some five places of each curve."""

    def shown(value: float | list[float]) -> str:
        values = value[:: max(1, len(value) // 5)] if isinstance(value, list) else [value]
        return " ".join(f"{each:.3g}" for each in values)

    rows = [
        f"{name:20} {shown(value):>44} {shown(vars(got)[name]):>44}"
        for name, value in vars(real).items()
    ]
    return "\n".join([f"{'':20} {'real':>44} {'synthetic':>44}", *rows])
