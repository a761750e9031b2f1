"""A model that is precise on one domain and not on another, and contexts of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.index import HeadEntry, write_index
from tests.server.running import calibration, entries
from tests.synthetic import make_head, make_softmax

V, D, TOPICS = 300, 24, 12
TARGET = {"p1": 0.97, "p5": 0.95}


def contexts(domain: int, rows: int, seed: int = 0) -> np.ndarray:
    """float32 [rows, D] around the topics of a domain."""
    topics = np.random.default_rng(domain).standard_normal((TOPICS, D)) * 2
    random = np.random.default_rng([domain, seed])
    noise = 0.1 * random.standard_normal((rows, D))
    return (topics[random.integers(TOPICS, size=rows)] + noise).astype(np.float32)


def screen_of(domain: int, rows: int = 2000) -> dict[str, np.ndarray]:
    """A list for each topic: the exact top 10 of what was seen there."""
    hidden = contexts(domain, rows, seed=1)
    centroids = np.random.default_rng(domain).standard_normal((TOPICS, D)).astype(np.float32)
    labels = make_head("exact", make_softmax()).topk(hidden, 10).ids
    unit = centroids / np.linalg.norm(centroids, axis=1, keepdims=True)
    nearest = (hidden @ unit.T).argmax(axis=1)
    lists = [np.unique(labels[nearest == topic]) for topic in range(TOPICS)]
    return {
        "centroids": unit.astype(np.float32),
        "offsets": np.cumsum([0, *map(len, lists)]).astype(np.int32),
        "ids": np.concatenate(lists).astype(np.int32),
    }


def write_domains(models: Path, domain: int = 1, **more: Any) -> Path:
    """models/demo/1, fitted to `domain` and built for TARGET: AUTO takes one probe of the screen.

    Four probes are said to be more precise, and are not on another domain either.
    """
    measured = calibration(
        entries("exact", (90.0, 80.0, 60.0), 1.0),
        entries("screen", (1.0, 1.0, 1.0), 0.98, probes=1),
        entries("screen", (2.0, 2.0, 2.0), 0.995, probes=2),
    )
    softmax = make_softmax()
    return write_index(
        models / "demo" / "1",
        softmax=softmax,
        parts={"screen": screen_of(domain)},
        heads={"exact": HeadEntry(), "screen": HeadEntry("screen", {"probes": 1})},
        default_head="screen",
        calibration=measured,
        config={"target_precision": TARGET},
        **more,
    )
