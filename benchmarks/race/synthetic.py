"""A seeded softmax of any size whose statistics are those of a real language model's.

The model, with the values of lm_statistics.json (measured on lm-docs-10k-200):
    h = mean + group + mode + within    the levels share the energy as k-means finds it
    w_i = log p(rank of i) along the mean of h, the rest of norm(rank of i) in a random colour
Colours follow the spectra of W and H, stretched to D; H's directions are shuffled among W's until
as much of H's energy lies in W's first ones as in the real model. Two numbers are then searched
for: the size of h away from its mean, for the top-1 probability, and the slope of log p, for the
entropy. Everything large is made in blocks.
Shape letters: N contexts, D hidden size, V vocabulary, G groups, M modes of a group.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.race.lm_statistics import Statistics, measure, side_by_side, softmax
from logitsieve.api.results import Float32

STATISTICS = Path(__file__).parent / "lm_statistics.json"
FIT, HELDOUT, TEST = 100_000, 10_000, 5000
LABEL_FLOPS = 2e13  # some minutes: what exact labels of the fit contexts may cost
GROUPS, MODES = 20, 20  # as many as the two sizes of k-means that the energies come from
BLOCK = 16_384
SEED = 20_19
LEAST_FREE = 0.3  # of ||w||^2, however far log p is from its mean
STEPS, CALIBRATING = 9, 1000  # of the search for the spread; contexts that it looks at
SLOPES = (0.5, 0.7, 0.9, 1.1, 1.3, 1.6, 2.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A source of contexts, in the coordinates of W's eigenvectors."""

    mean: Float32  # [D]
    modes: Float32  # [M, D]
    chances: np.ndarray  # [M]
    within: Float32  # [D], standard deviation around a mode
    rotation: Float32  # [D, D]
    spread: float = 1.0  # size of what is not the mean

    def draw(self, rows: int, seed: int) -> Float32:
        """float32 [rows, D]."""
        random = np.random.default_rng((SEED, seed))
        found = np.empty((rows, len(self.mean)), np.float32)
        for start in range(0, rows, BLOCK):
            count = min(BLOCK, rows - start)
            mode_N = random.choice(len(self.chances), count, p=self.chances)
            away_ND = random.standard_normal((count, len(self.mean)), np.float32) * self.within
            away_ND += self.modes[mode_N]
            away_ND *= self.spread
            found[start : start + count] = (away_ND + self.mean) @ self.rotation
        return found


def generate(words: int, dim: int) -> dict[str, Any]:
    """Return the fields of a Dataset, with a table of its statistics and the real ones."""
    real = Statistics(**json.loads(STATISTICS.read_text(encoding="utf-8")))
    source = make_source(real, dim)
    weight, bias, popularity = make_words(real, source, words)
    spread, slope = calibrate(real, source, weight, bias, popularity)
    source = replace(source, spread=spread)
    add_popularity(weight, source, slope * popularity)
    most = min(1.0, LABEL_FLOPS / (2.0 * words * dim * FIT))  # share of the contexts made
    fit, heldout, test = (
        source.draw(rows, seed)
        for seed, rows in enumerate((int(FIT * most), int(HELDOUT * most), TEST), start=1)
    )
    got = measure(weight, bias, fit[:20_000], test[:1000])
    return {
        "weight": weight,
        "bias": bias,
        "fit": fit,
        "heldout": heldout,
        "test": test,
        "provenance": "seeded synthetic softmax with an LSTM's statistics; "
        f"top-1 probability {got.top1:.3f} (real {real.top1:.3f}), "
        f"entropy {got.entropy:.2f} (real {real.entropy:.2f})",
        "beside": side_by_side(real, got),
    }


def stretched(shares: list[float], dim: int) -> np.ndarray:
    """The curve of eigenvalues over j / D, read at another D; they sum to 1."""
    places = (np.arange(len(shares)) + 0.5) / len(shares)
    logs = np.interp((np.arange(dim) + 0.5) / dim, places, np.log(shares))
    values = np.exp(logs)
    return np.asarray(values / values.sum())


def make_source(real: Statistics, dim: int) -> Source:
    """Modes and noise of H, and the rotation out of W's eigenvectors."""
    random = np.random.default_rng((SEED, 0))
    colour_D = np.sqrt(shuffled(real, dim, random))
    energy = real.hidden_norm2 * dim / len(real.hidden_spectrum)  # the same a coordinate
    mean_D = random.standard_normal(dim) * colour_D
    mean_D *= np.sqrt(energy * real.mean_share) / np.linalg.norm(mean_D)
    group, mode = real.explained[0] - real.mean_share, real.explained[-1] - real.explained[0]
    groups_GD = random.standard_normal((GROUPS, dim)) * colour_D * np.sqrt(energy * group)
    inner_MD = random.standard_normal((GROUPS * MODES, dim)) * colour_D * np.sqrt(energy * mode)
    modes_MD = np.repeat(groups_GD, MODES, axis=0) + inner_MD
    chances_M = 1 / np.arange(5.0, GROUPS * MODES + 5)
    random.shuffle(chances_M)
    chances_M /= chances_M.sum()
    modes_MD -= chances_M @ modes_MD
    rotation_DD = np.linalg.qr(random.standard_normal((dim, dim)))[0]
    within_D = colour_D * np.sqrt(energy * (1 - real.explained[-1]))
    return Source(
        mean=mean_D.astype(np.float32),
        modes=modes_MD.astype(np.float32),
        chances=chances_M,
        within=within_D.astype(np.float32),
        rotation=rotation_DD.astype(np.float32),
    )


def shuffled(real: Statistics, dim: int, random: np.random.Generator) -> np.ndarray:
    """H's eigenvalues in W's directions, as far out of order as the real ones are."""
    values, noise = stretched(real.hidden_spectrum, dim), random.standard_normal(dim)
    first = max(1, dim // 10)
    low, high = 0.0, 4.0
    for _ in range(30):
        middle = (low + high) / 2
        order = np.argsort(np.arange(dim) / dim + middle * noise)
        placed = np.empty(dim)
        placed[order] = values
        low, high = (middle, high) if placed[:first].sum() > real.aligned else (low, middle)
    return placed


def make_words(real: Statistics, source: Source, words: int) -> tuple[Float32, Float32, Float32]:
    """W without its part along the mean of h, b, and log p of each rank, which goes there later."""
    random = np.random.default_rng((SEED, 99))
    dim = len(source.mean)
    rank = np.log1p(np.arange(words)) / np.log(words)  # 0 to 1, as the knots of the real curves are
    knots = np.linspace(0, 1, len(real.norms))
    size_V = np.interp(rank, knots, real.norms)
    size_V *= np.exp(random.standard_normal(words) * real.norm_spread)
    bias = np.interp(rank, knots, real.biases).astype(np.float32)
    popularity = np.interp(rank, knots, real.log_probabilities).astype(np.float32)
    popularity -= popularity.mean()  # a constant changes no probability, only norms
    along_V = popularity / np.linalg.norm(source.mean)
    size_V = np.sqrt(np.maximum(size_V**2 - along_V**2, LEAST_FREE * size_V**2))
    colour_D = np.sqrt(stretched(real.weight_spectrum, dim)).astype(np.float32)
    along_D = source.mean / np.linalg.norm(source.mean)
    weight = np.empty((words, dim), np.float32)
    for start in range(0, words, BLOCK):
        rows = weight[start : start + BLOCK]
        drawn = random.standard_normal(rows.shape, np.float32) * colour_D
        drawn -= np.outer(drawn @ along_D, along_D)
        drawn *= (size_V[start : start + BLOCK] / np.linalg.norm(drawn, axis=1))[:, None]
        rows[:] = drawn @ source.rotation
    return weight, bias, popularity


def add_popularity(weight: Float32, source: Source, wanted_V: Float32) -> None:
    """Change W in place so that the mean context gives each word its log probability."""
    along_D = (source.mean / (source.mean @ source.mean)) @ source.rotation
    for start in range(0, len(weight), BLOCK):
        weight[start : start + BLOCK] += np.outer(wanted_V[start : start + BLOCK], along_D)


def calibrate(
    real: Statistics, source: Source, weight: Float32, bias: Float32, popularity: Float32
) -> tuple[float, float]:
    """(spread, slope): spread for the top-1 probability, slope nearest in entropy."""
    hidden_states = source.draw(CALIBRATING, 0)[:: max(1, len(weight) // 50_000)]
    centre_D = source.mean @ source.rotation
    away_NV = (hidden_states - centre_D) @ weight.T
    along_N = (hidden_states - centre_D) @ (centre_D / (centre_D @ centre_D))

    def tell(spread: float, slope: float) -> tuple[float, float]:
        factor_N = np.float32(slope) * (1 + np.float32(spread) * along_N)
        logits = away_NV * np.float32(spread) + np.outer(factor_N, popularity) + bias
        _, top1, entropy = softmax(logits)
        return float(top1.mean()), float(entropy.mean())

    def fitting(slope: float) -> float:
        low, high = 0.1, 10.0
        for _ in range(STEPS):
            spread = float(np.sqrt(low * high))
            low, high = (spread, high) if tell(spread, slope)[0] < real.top1 else (low, spread)
        return spread

    pairs = [(fitting(slope), slope) for slope in SLOPES]
    return min(pairs, key=lambda pair: abs(tell(*pair)[1] - real.entropy))
