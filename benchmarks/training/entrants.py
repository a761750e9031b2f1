"""Who takes part: a loss of the registry and its options, written as `logitsieve train` takes them.

`lsh`, `uniform:n_sampled=1100`, `rf:n_sampled=100;n_features=512`. What LOSSES lacks stays away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from logitsieve.api.results import Int64
from logitsieve.training import LOSSES
from logitsieve.training.losses.loss import SoftmaxLoss
from logitsieve.training.trainer.heads import make_head, options_of

FULL = ("full", "chunked")  # every class is scored


@dataclass(frozen=True)
class Entrant:
    """A loss by its name in LOSSES, and options as NAME=VALUE."""

    loss: str
    options: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """`LOSS`, or `LOSS:NAME=VALUE;NAME=VALUE`."""
        loss, _, options = text.strip().partition(":")
        return cls(loss, tuple(part.strip() for part in options.split(";") if part.strip()))

    @property
    def label(self) -> str:
        """As `parse` reads it."""
        return f"{self.loss}:{';'.join(self.options)}" if self.options else self.loss

    def make(self, dim: int, counts: Int64, seed: int = 0) -> SoftmaxLoss:
        """The head over `len(counts)` classes that occur so often."""
        return make_head(self.loss, self.options, dim=dim, counts=counts, seed=seed, device="cpu")

    def plus(self, *options: str) -> Entrant:
        """With further options."""
        return Entrant(self.loss, self.options + options)


def scoring(loss: str, classes: int) -> Entrant:
    """The loss set so that a row meets so many classes besides its targets.

    Those that look classes up and add uniform ones share them out as papers/000, 003 and 004 do.
    What scores no fixed number (full, d-softmax) stays as it is.
    """
    if loss == "lns":
        return Entrant(loss, (f"cap={classes - classes // 6}", f"n_uniform={classes // 6}"))
    if loss == "lsh":
        tail = round(classes / 11)
        return Entrant(loss, (f"k={classes - tail}", f"n_uniform={tail}"))
    if loss == "kmeans":
        best = max(1, classes // 6)
        return Entrant(loss, (f"k={best}", f"n_uniform={classes - best}"))
    if loss == "top-k":
        return Entrant(loss, (f"k={classes}",))
    sampled = loss in LOSSES and "n_sampled" in options_of(loss)
    return Entrant(loss, (f"n_sampled={classes}",) if sampled else ())


def variants(loss: str, classes: int) -> list[Entrant]:
    """`scoring`; LNS by the label and by the context, LSH Softmax without uniform classes too."""
    entrant = scoring(loss, classes)
    if loss == "lns":
        return [entrant.plus(f"query={query}") for query in ("label", "embedding")]
    if loss == "lsh":
        return [entrant, Entrant(loss, (f"k={classes}", "n_uniform=0"))]
    return [entrant]


def parse_all(text: str) -> list[Entrant]:
    """A list, by commas."""
    return [Entrant.parse(part) for part in text.split(",") if part.strip()]


def present(entrants: Iterable[Entrant]) -> list[Entrant]:
    """Those that the registry has, each once; of the others it is said that they are absent."""
    kept = []
    for entrant in dict.fromkeys(entrants):
        if entrant.loss in LOSSES:
            kept.append(entrant)
        else:
            print(f"{entrant.label}: LOSSES has no {entrant.loss!r}, it stays away")
    return kept


def zipf_counts(classes: int, total: int = 10_000_000) -> Int64:
    """Counts [V] that fall as 1 / rank, `total` in all, each at least 1."""
    weights = 1 / np.arange(1, classes + 1)
    counts: Int64 = np.maximum(1, total * weights / weights.sum()).astype(np.int64)
    return counts
