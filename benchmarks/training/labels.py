"""Extreme classification as streams of batches: words that are near, and synthetic labels.

A batch is decided by a seed and its number; nothing but the text is held in memory.
Shape letters: B rows, F features, S features of a row, L labels of a row, V labels in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from benchmarks.training.entrants import zipf_counts
from logitsieve.api.results import Int64
from logitsieve.training.trainer.corpus import Corpus

NONE = -100  # what rows with fewer labels are padded with: the losses' ignore_index
WINDOW = 2  # words to each side: papers/003 section 4


class Batch(NamedTuple):
    """features int64 [B, S] of each row, labels int64 [B, L], padded."""

    features: Tensor
    labels: Tensor


class Task(Protocol):
    """Batches to learn from and to judge by."""

    @property
    def name(self) -> str:
        """As tables call it."""
        ...

    @property
    def n_features(self) -> int:
        """F."""
        ...

    @property
    def counts(self) -> Int64:
        """How often each label occurs [V], at least once."""
        ...

    def train(self, number: int, rows: int) -> Batch:
        """The batch of that number."""
        ...

    def judge(self, number: int, rows: int) -> Batch:
        """One that is never among those of `train`."""
        ...


class SkipGram:
    """A word's feature is itself, its labels are the two words to each side."""

    name = "skip-gram"

    def __init__(self, corpus: Corpus, seed: int = 0) -> None:
        self.n_features = len(corpus.vocabulary)
        self.counts = np.maximum(corpus.counts, 1)
        self._corpus, self._seed = corpus, seed

    def train(self, number: int, rows: int) -> Batch:
        """Places drawn from the text that trains."""
        return self._batch(self._corpus.train, [self._seed, number, 0], rows)

    def judge(self, number: int, rows: int) -> Batch:
        """Places drawn from the text that was held out."""
        return self._batch(self._corpus.valid, [self._seed, number, 1], rows)

    def _batch(self, ids: np.ndarray, key: list[int], rows: int) -> Batch:
        places = np.random.default_rng(key).integers(WINDOW, len(ids) - WINDOW, rows)
        offsets = np.array([step for step in range(-WINDOW, WINDOW + 1) if step])
        labels = ids[places[:, None] + offsets].astype(np.int64)
        features = ids[places].astype(np.int64)[:, None]
        return Batch(torch.from_numpy(features), torch.from_numpy(unique_rows(labels)))


@dataclass(frozen=True)
class Synthetic:
    """Labels that occur as 1 / rank, each with features of its own: learnable, but not at once.

    A row has one label by Zipf's law and up to `most - 1` of its `RELATED` fixed neighbours; its
    features are drawn from the signatures of its labels, one in four from anywhere.
    """

    classes: int
    n_features: int
    most: int = 5
    features: int = 32  # S
    signature: int = 24  # features that belong to a label
    seed: int = 0

    RELATED = 8

    @property
    def name(self) -> str:
        """As tables call it."""
        return f"synthetic-{self.classes}"

    @property
    def counts(self) -> Int64:
        """Zipf's."""
        return zipf_counts(self.classes)

    def train(self, number: int, rows: int) -> Batch:
        """The batch of that number."""
        return self._batch(np.random.default_rng([self.seed, number, 0]), rows)

    def judge(self, number: int, rows: int) -> Batch:
        """Of the same law, by other numbers."""
        return self._batch(np.random.default_rng([self.seed, number, 1]), rows)

    def _batch(self, random: np.random.Generator, rows: int) -> Batch:
        # The inverse of Zipf's distribution function, as a continuous one: V^u is log-uniform.
        first = (self.classes ** random.random(rows)).astype(np.int64) - 1
        first = first.clip(0, self.classes - 1)
        which = random.integers(self.RELATED, size=(rows, self.most - 1))
        related = mix(first[:, None] * self.RELATED + which, 1) % np.uint64(self.classes)
        labels = np.concatenate([first[:, None], related.astype(np.int64)], axis=1)
        kept = np.arange(self.most) < random.integers(1, self.most + 1, size=(rows, 1))
        shown = np.take_along_axis(
            labels, random.integers(kept.sum(1)[:, None], size=(rows, self.features)), axis=1
        )
        own = shown * self.signature + random.integers(self.signature, size=shown.shape)
        anywhere = random.random(shown.shape) < 0.25
        drawn = random.integers(self.n_features, size=shown.shape)
        hashed = (mix(own, 2) % np.uint64(self.n_features)).astype(np.int64)
        features = np.where(anywhere, drawn, hashed)
        return Batch(
            torch.from_numpy(features), torch.from_numpy(unique_rows(np.where(kept, labels, NONE)))
        )


def mix(values: np.ndarray, salt: int) -> np.ndarray:
    """SplitMix64's finisher (Steele et al. 2014): numbers that look drawn, the same each time."""
    z = values.astype(np.uint64) + np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed


def unique_rows(labels_BL: np.ndarray) -> Int64:
    """Each row's labels once, ascending; what was there twice is NONE."""
    ordered = np.sort(labels_BL, axis=1)
    twice = np.zeros(ordered.shape, bool)
    twice[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    found: Int64 = np.where(twice, NONE, ordered)
    return found
