"""Rawat, Chen, Yu, Suresh, Kumar 2019, Sampled Softmax with Random Fourier Features."""

import math
from typing import Any

import numpy as np

from benchmarks.papers.classification import classifiers, debian, wordnet
from benchmarks.papers.runs import Options, Rows, Run, language_models, steps
from logitsieve.training.proposals.kernel import RF_SCALE

M, SCALE = "n_sampled=100", f"scale={RF_SCALE:.3f}"
RATES = [0.1, 0.2, 0.4]
BASELINES = {  # with rates next to the best of those from 0.1 to 3.2
    f"full:{SCALE}": [0.4, 0.8],
    f"exp:{M};{SCALE}": [0.4, 0.8],
    f"quadratic:{M};{SCALE}": [0.4, 0.8],
    f"uniform:{M};{SCALE}": [1.6, 3.2],
    f"uniform:{M};{SCALE};in_batch=true": [0.4, 0.8],
    f"rf:{M};n_features=1024": RATES,
    f"rf:{M};n_features=1024;in_batch=true": [0.2, 0.4, 0.8],
}
SINGLE = f"rf:{M};n_features=1024;leaf=1"  # the paper's own leaves
NUS = [f"rf:{M};n_features=1024;nu={nu}" for nu in (1.56, 2.78, 4.0, 6.25, 11.1)]
NUS += [f"{method};features=positive" for method in NUS[1:]]
WIDTHS = [f"rf:{M};n_features={count}" for count in (128, 256, 512, 1024)]
TIMED = ["exp:n_sampled=10", f"quadratic:n_sampled=10;{SCALE}"]
TIMED += [f"rf:n_sampled=10;n_features={count}" for count in (50, 200, 500, 1000)]
PAIRS, TAUS = 2000, (1.0, 2.2)
BATCH = 256


def table_1(options: Options) -> Rows:
    """Mean squared error of maps of exp(tau h.c), between scikit-learn's digits of length 1.

    Random Fourier features estimate the Gaussian kernel exp(tau (h.c - 1)); times e^tau it is
    exp(tau h.c), and its squared error e^(2 tau) times as large.
    """
    images = digits()
    unit = images / np.linalg.norm(images, axis=1, keepdims=True)
    random = np.random.default_rng(0)
    h, c = (unit[random.integers(len(unit), size=PAIRS)] for _ in range(2))
    cosine, dim = np.einsum("nd,nd->n", h, c), unit.shape[1]
    for tau in TAUS:
        true, root = np.exp(tau * cosine), math.sqrt(tau)
        design = np.stack([cosine**2, np.ones(PAIRS)], axis=1)
        fitted = design @ np.linalg.lstsq(design, true, rcond=None)[0]
        made = [("quadratic, fitted", dim**2, fitted)]
        for count in (100, 1000, dim**2):
            angles = root * (h - c) @ random.standard_normal((dim, count)).astype(np.float32)
            made.append(("random Fourier", count, math.exp(tau) * np.cos(angles).mean(axis=1)))
        estimate = maclaurin(root * h, root * c, dim**2, random)
        made.append(("random Maclaurin", dim**2, estimate))
        for method, features, values in made:
            row: dict[str, Any] = {"tau": tau, "method": method, "features": features}
            row["mse"] = float(((values - true) ** 2).mean())
            row["gaussian_mse"] = row["mse"] / math.exp(2 * tau) if "Fourier" in method else ""
            yield row | {"data": "scikit-learn's digits", "dim": dim, "pairs": PAIRS}


def digits() -> np.ndarray:
    """Return images of digits [N, 256], each of their 8 x 8 pixels as four; values from 0 to 1."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise SystemExit(f"{error}: pip install '.[bench]'") from None
    images = load_digits().images.astype(np.float32) / 16
    return np.kron(images, np.full((2, 2), 1, np.float32)).reshape(len(images), -1)


def maclaurin(h: np.ndarray, c: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Estimate exp(h.c) by products of random signs (Kar and Karnick 2012), [N]."""
    degrees = np.bincount(random.geometric(0.5, count) - 1)
    total, factorial = np.zeros(len(h)), 1.0
    for degree, features in enumerate(degrees):
        factorial *= max(degree, 1)
        product = np.ones((len(h), features), np.float32)
        for _ in range(degree):
            signs = random.choice(np.array([-1, 1], np.float32), (h.shape[1], features))
            product *= (h @ signs) * (c @ signs)
        total += 2.0 ** (degree + 1) / factorial * product.sum(axis=1)
    return total / count


def table_2(options: Options) -> Rows:
    """Milliseconds to compute the loss of ten rows, with ten draws each."""
    for size in (10_000, 500_000):
        yield from steps(TIMED, size, 64, 10, forward=True)


def table_3(options: Options) -> Rows:
    """Precision on labels of packages and of synsets, after the same seconds or steps."""
    for task in (debian(), wordnet()):
        yield from classifiers(task, list(BASELINES), BATCH, options)


def figure_1(options: Options) -> Rows:
    """Perplexity by nu, by waves and by positive features."""
    return language_models(NUS, RATES, options)


def figure_2(options: Options) -> Rows:
    """Perplexity by the number of features."""
    return language_models(WIDTHS, RATES, options)


def figure_3(options: Options) -> Rows:
    """Perplexity of all proposals on normalised logits; quadratic with the absolute softmax."""
    for method, rates in {**BASELINES, SINGLE: RATES}.items():
        yield from language_models([method], rates, options)


RUNS: dict[str, Run] = {
    "table 1": table_1,
    "table 2": table_2,
    "table 3": table_3,
    "figure 1": figure_1,
    "figure 2": figure_2,
    "figure 3": figure_3,
}
