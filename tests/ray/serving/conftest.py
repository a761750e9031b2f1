from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from logitsieve.index import HeadEntry, split_index, write_index
from tests.ray.serving.running import Deployed
from tests.sharded import sketch_of, softmax_of
from tests.synthetic import screen_arrays


class Indexes(NamedTuple):
    """A folder of indexes in one piece, and the same in two shards."""

    whole: Path
    models: Path


def write_lm(path: Path, tied: bool = True, **more: Any) -> Path:
    """V = 1,948, D = 8, in one piece."""
    softmax = softmax_of(tied)
    heads = {
        "exact": HeadEntry(),
        "certified": HeadEntry("sketch"),
        "screen": HeadEntry("screen", {"probes": 2.0}),
    }
    parts = {"sketch": sketch_of(tied), "screen": screen_arrays(softmax)}
    options = {"parts": parts, "heads": heads, "default_head": "exact", **more}
    return write_index(path, softmax=softmax, **options)


@pytest.fixture(scope="session")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Indexes:
    """lm@1 with ties across its two shards, and bounds."""
    folder = tmp_path_factory.mktemp("ray")
    whole, models = folder / "whole", folder / "models"
    write_lm(whole / "lm" / "1")
    split_index(whole / "lm" / "1", models / "lm" / "1", 2, bounds=True)
    return Indexes(whole, models)


@pytest.fixture(scope="session")
def served(cluster: None) -> Iterator[None]:
    """Ray Serve without its proxies."""
    from ray import serve

    serve.start(proxy_location="Disabled")
    yield
    serve.shutdown()


@pytest.fixture(scope="session")
def deployed(
    served: None, indexes: Indexes, kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    models = tmp_path_factory.mktemp("deployed") / "models"
    shutil.copytree(indexes.models, models)
    made = Deployed(models, kernel_cache)
    yield made
    made.client.close()
    made.admin.close()


def without_shards(version: Path, out: Path) -> Path:
    """A copy of an index in shards without their folders."""
    return shutil.copytree(version, out, ignore=shutil.ignore_patterns("shards"))
