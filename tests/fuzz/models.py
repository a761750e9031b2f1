"""The models that fuzzed requests are about: small ones with a head of each kind of bound."""

import json
from pathlib import Path

import numpy as np

from logitsieve.heads import Softmax
from logitsieve.heads.certified import GRADES
from logitsieve.index import HeadEntry, write_index
from logitsieve.index_builder.fit.certified import Widths
from logitsieve.index_builder.fit.levels import code_levels, turned_at_random
from logitsieve.index_builder.fit.rotated_rows import square, turn
from logitsieve.index_builder.fit.svd import preview_arrays
from tests.synthetic import encode, narrow_rotation

V, D, CLUSTERS, LISTED = 100, 24, 5, 30
FIRST = 16  # coordinates in eight bits where a sketch has levels
MODEL = "demo"


def write_models(models: Path) -> None:
    """demo@1 (stable), demo@2 (canary), which has levels; demo@3 is no index."""
    for version in (1, 2):
        write_version(models / MODEL / str(version), seed=version, levels=version == 2)
    (models / MODEL / "3").mkdir()
    aliases = models / MODEL / "aliases.json"
    aliases.write_text(json.dumps({"canary": 2, "stable": 1}), encoding="utf-8")


def write_version(out: Path, seed: int, levels: bool = False) -> Path:
    """One index, the same in every run."""
    random = np.random.default_rng(seed)
    weight = random.standard_normal((V, D), np.float32)
    softmax = Softmax(weight, random.standard_normal(V, np.float32))
    lists = [random.permutation(V)[:LISTED] for _ in range(CLUSTERS)]
    turning, _ = narrow_rotation(softmax, random.standard_normal((64, D), np.float32), D)
    if levels:
        turned = turn(softmax, square(turned_at_random(turning, FIRST, seed)))
        sketch = code_levels(turned, FIRST)
    else:
        sketch = encode(softmax, turning, Widths(16, 64))
    return write_index(
        out,
        softmax=softmax,
        parts={
            "screen": {
                "centroids": random.standard_normal((CLUSTERS, D), np.float32),
                "offsets": np.arange(0, LISTED * CLUSTERS + 1, LISTED, dtype=np.int32),
                "ids": np.concatenate(lists).astype(np.int32),
            },
            "sketch": sketch,
            "svd": preview_arrays(softmax, D // 3),
        },
        heads={
            "exact": HeadEntry(),
            "screen": HeadEntry("screen", {"probes": 1.0}),
            "certified": HeadEntry("sketch"),
            **{grade: HeadEntry("sketch") for grade in GRADES if levels},
            "svd": HeadEntry("svd"),
        },
        default_head="screen",
        vocabulary=[f"word{n}" for n in range(V)],
    )
