"""What the simple fits have in common: what they make, and how they choose an operating point.

Shape letters: H held-out contexts judged, D hidden size, K labels a context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from logitsieve.api.results import Float32, Int64
from logitsieve.index_builder.fit_inputs import FitInputs

TARGET = 0.99  # P@1 and P@5 that the stored operating point reaches on held-out contexts
JUDGED = 2048  # held-out contexts that choose it
DEPTH = 5


@dataclass(frozen=True, eq=False)
class FitResult:
    """A fitted head: its part, what was chosen, and the operating point it is stored at."""

    arrays: Mapping[str, np.ndarray]
    summary: Mapping[str, float]
    knobs: Mapping[str, float]
    history: Sequence[Mapping[str, float]] = ()
    compared: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)


def judges(material: FitInputs) -> tuple[Float32, Int64]:
    """(hidden [H, D], labels [H, K]): held-out contexts at equal distances, exact labels first."""
    rows = material.heldout.rows
    count = min(JUDGED, rows)
    taken = np.arange(count) * rows // count
    labels = material.heldout_labels[taken, :DEPTH].astype(np.int64)
    return material.heldout.sample(count), labels


def least_reaching(needed_HK: np.ndarray, target: float = TARGET) -> int:
    """The least n at which `target` of the labels, and of the best ones alone, are found.

    Label j of context h is found by settings from needed_HK[h, j] on.
    """
    return max(_quantile(needed_HK[:, 0], target), _quantile(needed_HK, target))


def _quantile(values: np.ndarray, share: float) -> int:
    ordered = np.sort(values, axis=None)
    return int(ordered[int(np.ceil(share * ordered.size)) - 1])
