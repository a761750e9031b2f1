"""Launches the plans of screen, frequency and svd, for compile_plans.py."""

from __future__ import annotations

import numpy as np
import torch

from logitsieve.gpu.matrix import Matrix
from logitsieve.gpu.plans.screen import ALONE, LONGEST, RoutedPlan, frequency_on, screen_on
from logitsieve.gpu.plans.svd import SvdPlan, preview_on
from tests.gpu.answers import exact_behind

HOST = torch.device("cpu")


def arrays(clusters: int, dim: int, length: int) -> dict[str, np.ndarray]:
    """Equal centroids, each with as many ids."""
    return {
        "centroids": np.ones((clusters, dim), np.float32),
        "offsets": np.arange(clusters + 1, dtype=np.int32) * length,
        "ids": np.tile(np.arange(length, dtype=np.int32), clusters),
    }


def run_lists(matrix: Matrix, hidden: torch.Tensor) -> None:
    """One probe, and several with a fallback."""
    screen, ids = screen_on(HOST, arrays(8, matrix.dim, 40)), np.arange(99, dtype=np.int32)
    behind = exact_behind(matrix)
    RoutedPlan(matrix, screen, hidden, 5, behind, probes=3, escalate=0.2).run()
    RoutedPlan(matrix, frequency_on(HOST, ids, 99, matrix.dim), hidden, 5, behind).run()


def run_many_lists(matrix: Matrix, hidden: torch.Tensor) -> None:
    """Many centroids, and lists longer than one program ranks."""
    clusters = ALONE // matrix.dim + 1
    screen = screen_on(HOST, arrays(clusters, matrix.dim, LONGEST // 2))
    RoutedPlan(matrix, screen, hidden, 5, exact_behind(matrix), probes=3, escalate=0.2).run()


def run_svd(matrix: Matrix, hidden: torch.Tensor) -> None:
    """Scores that one program looks through, or several."""
    groups = -(-matrix.rows // 16)
    part = {
        "basis": np.ones((32, matrix.dim), np.float32),
        "preview": np.ones((groups, 32, 16), np.float32),
    }
    preview = preview_on(HOST, part, matrix.rows, 24)
    SvdPlan(matrix, preview, hidden, 10, 100).run()
