"""Every experiment of training, whole, at a size of seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.training import clusters, extreme, gradients, quality, serving, steps

Run = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences in which a word tells the next."""
    random, path = np.random.default_rng(0), tmp_path_factory.mktemp("text") / "words.txt"
    starts = random.integers(60, size=1500)
    lines = [" ".join(f"w{(s * (i + 1)) % 61}" for i in range(8)) for s in starts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """An experiment's results and table."""

    def run(module: Any, *arguments: object) -> tuple[dict[str, Any], str]:
        folders = ("--out", tmp_path / "out", "--cache", tmp_path / "cache")
        module.main([str(each) for each in (*arguments, *folders)])
        name = module.__name__.rpartition(".")[2]
        results = json.loads((tmp_path / "out" / f"{name}.json").read_text(encoding="utf-8"))
        return results, (tmp_path / "out" / f"{name}.md").read_text(encoding="utf-8")

    return run


def model(text: Path, tokens: int = 1400) -> tuple[object, ...]:
    """Options of a language model that is trained in no time."""
    sizes = ("--vocabulary", 64, "--dim", 8, "--rows", 4, "--valid", 800)
    return ("--text", text, "--tokens", tokens, "--search", 0, *sizes)


def test_quality(run: Run, text: Path, tmp_path: Path) -> None:
    options = (*model(text), "--seeds", 1, "--sizes", "8,16", "--parts", "main,nu")
    results, table = run(quality, *options)
    found = {run["method"]: run for run in results["runs"]}
    assert found["full"]["perplexity"] < 64, "no better than all words alike"
    assert len(found["full"]["course"]) > 1
    assert "rf:n_sampled=8;nu=4.0" in table
    assert {path.name for path in (tmp_path / "out").glob("*.svg")} == {
        "quality.svg",
        "features.svg",
    }
    again, _ = run(quality, *options)
    assert again["runs"] == results["runs"], "a finished run is kept"


def test_gradients(run: Run, text: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    arrays: dict[str, Any] = {
        "W": random.standard_normal((64, 8), np.float32),
        "b": np.zeros(64, np.float32),
        "y_train": random.integers(64, size=100),
        "H_test": random.standard_normal((40, 8)).astype(np.float16),
        "y_test": random.integers(64, size=40),
    }
    np.savez(tmp_path / "frozen.npz", **arrays)
    few: tuple[object, ...] = ("--batch", 4, "--batches", 2, "--draws", 2, "--rounds", 1)
    methods = "exp:n_sampled=12,uniform:n_sampled=12,lsh:k=10;n_uniform=2,lns,rf,kmeans,nce"
    few = (*few, "--methods", methods, "--sizes", 12)
    results, table = run(gradients, *model(text), *few, "--data", tmp_path / "frozen.npz")
    errors = {run["settings"]["method"]: run for run in results["frozen"]}
    assert not [run for run in errors.values() if "failed" in run]
    assert (
        errors["exp:n_sampled=12"]["weight_error"] < errors["uniform:n_sampled=12"]["weight_error"]
    )
    assert set(results["laws"]["points"]) == {"start", "middle", "end"}
    assert "three points" in table


def test_steps(run: Run) -> None:
    methods = "uniform,lsh,rf,kmeans,lns:query=embedding,top-k"
    few = ("--rounds", 1, "--seconds", 0.001, "--methods", methods)
    results, table = run(steps, *few, "--parts", "batch,growth", "--sizes", "90x8x4x12")
    assert not [run for run in results["runs"] if "failed" in run]
    lsh = next(run for run in results["runs"] if run["settings"]["method"].startswith("lsh"))
    own = lsh["us"][lsh["settings"]["method"]]
    assert own["steps"] % steps.EVERY == 0
    assert own["index"] > 0
    assert lsh["baseline"] in ("torch", "chunked")
    assert "times as fast" in table


def test_extreme(run: Run, text: Path) -> None:
    few = ("--steps", 12, "--rows", 8, "--judged", 32, "--dim", 8, "--scored", 24)
    results, table = run(extreme, *few, "--labels", 80, "--features", 50, "--text", text)
    assert not [run for run in results["runs"] if "failed" in run]
    assert {run["part"].partition(":")[0] for run in results["runs"]} == {
        "skip-gram",
        "synthetic",
        "periods",
    }
    assert "d-softmax" in table


def test_clusters(run: Run, text: Path) -> None:
    few = ("--sizes", 60, "--steps", 6, "--periods", "2,5")
    results, table = run(clusters, *model(text), *few)
    assert len(results["runs"]) == 2 * (1 + 2 * 2)
    assert all(run["us"]["index"] > 0 for run in results["runs"] if run["period"])
    assert "language model" in table


def test_serving(run: Run, text: Path) -> None:
    results, table = run(
        serving, *model(text), "--contexts", 1_000, "--clusters", 4, "--methods", "lsh"
    )
    for found in results["runs"]:
        assert found["heads"]["exact"]["p1"] == 1
        assert found["heads"]["screen"]["us_per_row"] > 0
    assert "screen" in table
