"""The two ideas of examples/nano.py, by definition, and as an oracle of the heads."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from logitsieve.api.requests import Sampling
from logitsieve.heads import FullHead, ScreenHead, Softmax
from logitsieve.heads.sketch import SketchHead
from tests.oracle import best, logits64
from tests.synthetic import sketch_head, usual_sketch

PATH = Path(__file__).parents[2] / "examples" / "nano.py"
nano = SimpleNamespace(**runpy.run_path(str(PATH)))
V, D, K, TEMPERATURE = 1000, 96, 5, 8.0


@pytest.fixture(scope="module")
def softmax() -> Softmax:
    """A flat spectrum, with equal rows far apart."""
    random = np.random.default_rng(0)
    weight = (random.standard_normal((V, D)) / 4).astype(np.float32)
    bias = (random.standard_normal(V) / 4).astype(np.float32)
    weight[V // 2 :: 5], bias[V // 2 :: 5] = weight[: V // 2 : 5], bias[: V // 2 : 5]
    return Softmax(weight, bias)


@pytest.fixture(scope="module")
def contexts(softmax: Softmax) -> np.ndarray:
    """Near to some rows, so that clusters of them have few labels."""
    random = np.random.default_rng(1)
    near = softmax.weight[random.integers(0, 20, 600)]
    return (8 * near + random.standard_normal((600, D)) / 2).astype(np.float32)


@pytest.fixture(scope="module")
def sketch(softmax: Softmax, contexts: np.ndarray) -> Any:
    return nano.make_sketch(plain(softmax), contexts)


@pytest.fixture(scope="module")
def head(softmax: Softmax) -> SketchHead:
    """The product's, over a sketch of its own."""
    return sketch_head(softmax, usual_sketch(softmax))


def plain(softmax: Softmax) -> Any:
    return nano.Softmax(softmax.weight, softmax.bias)


def test_it_is_short() -> None:
    lines = PATH.read_text(encoding="utf-8").split("# ///\n")[-1].splitlines()
    assert len(lines) <= 400
    assert not any("logitsieve." in line or "numba" in line for line in lines)


def test_logits_are_exact_with_a_short_list(softmax: Softmax, contexts: np.ndarray) -> None:
    every = np.arange(V)
    for h in contexts[:5]:
        expected = logits64(softmax.weight, softmax.bias, h[None])[0]
        assert np.array_equal(nano.logits_of(plain(softmax), h, every), expected)
    screen = nano.Screen(np.ones((1, D)), [np.arange(2)])
    ids, rows = nano.screen_topk(plain(softmax), screen, contexts[0], 3)
    assert rows == [V]
    assert ids.tolist() == best(logits64(softmax.weight, softmax.bias, contexts[:1]), 3)[0].tolist()


@pytest.mark.parametrize("k", [1, K, 40])
def test_proven_ids_are_those_of_the_product(
    softmax: Softmax, contexts: np.ndarray, sketch: Any, head: SketchHead, k: int
) -> None:
    asked = contexts[::20]
    product = head.topk(asked, k)
    answers = [nano.sketch_topk(plain(softmax), sketch, h, k, 0.0) for h in asked]
    assert np.array_equal(np.stack([ids for ids, _ in answers]), product.ids)
    assert np.array_equal(product.ids, best(logits64(softmax.weight, softmax.bias, asked), k))
    assert all(list(rows) == sorted(rows, reverse=True) and rows[-1] >= k for _, rows in answers)


def test_an_allowed_error_reads_less(softmax: Softmax, contexts: np.ndarray, sketch: Any) -> None:
    asked = contexts[::20]
    head = SketchHead(softmax, usual_sketch(softmax), fallback=FullHead(softmax))
    most = head.max_error
    answers = [nano.sketch_topk(plain(softmax), sketch, h, K, most) for h in asked]
    assert np.array_equal(np.stack([ids for ids, _ in answers]), head.topk(asked, K).ids)
    proven = [nano.sketch_topk(plain(softmax), sketch, h, K, 0.0) for h in asked]
    assert sum(left[0] for _, left in answers) < sum(left[0] for _, left in proven)


def test_bounds_hold_at_every_level(softmax: Softmax, contexts: np.ndarray, sketch: Any) -> None:
    for h in (contexts[0], 100 * contexts[1], np.zeros(D, np.float32), softmax.weight[3]):
        logits, sieve = logits64(softmax.weight, softmax.bias, h[None])[0], nano.Sieve(sketch, h)
        widths = []
        for _ in nano.LEVELS:
            estimates, upper = sieve.read()
            assert (logits <= upper).all()
            assert (logits >= 2 * estimates - upper).all()
            widths.append((upper - estimates).mean())
        assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("temperature", [1.0, TEMPERATURE, 20.0])
def test_draws_are_those_of_the_product(
    softmax: Softmax, contexts: np.ndarray, sketch: Any, head: SketchHead, temperature: float
) -> None:
    asked = np.ascontiguousarray(contexts[::6])
    seeds = np.arange(len(asked), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # large ones
    expected = FullHead(softmax).draw(asked, Sampling(1, seeds), 1 / temperature).ids[:, 0]
    by_bounds = head.draw(asked, Sampling(1, seeds), 1 / temperature)
    drawn = [
        nano.sketch_draw(plain(softmax), sketch, h, temperature, int(seed))
        for h, seed in zip(asked, seeds, strict=True)
    ]
    assert [int(ids[0]) for ids, _ in drawn] == expected.tolist() == by_bounds.ids[:, 0].tolist()
    assert np.mean([left[-1] for _, left in drawn]) < V / 2


def test_a_screen_answers_as_the_product(softmax: Softmax, contexts: np.ndarray) -> None:
    screen = nano.learn_screen(plain(softmax), contexts, clusters=10, budget=50)
    assert min(map(len, screen.lists)) >= K
    head = ScreenHead(
        softmax,
        {
            "centroids": screen.centroids.astype(np.float32),
            "offsets": np.cumsum([0, *map(len, screen.lists)]).astype(np.int32),
            "ids": np.concatenate(screen.lists).astype(np.int32),
        },
        fallback=FullHead(softmax),
    )
    answers = [nano.screen_topk(plain(softmax), screen, h, K) for h in contexts[::10]]
    product = head.topk(contexts[::10], K)
    assert np.array_equal(np.stack([ids for ids, _ in answers]), product.ids)
    assert [rows for _, [rows] in answers] == product.scanned.tolist()


def test_a_screen_keeps_its_budget(softmax: Softmax, contexts: np.ndarray) -> None:
    truth = best(logits64(softmax.weight, softmax.bias, contexts[::5]), 1)
    found = []
    for budget in (10, 30, 100):
        screen = nano.learn_screen(plain(softmax), contexts, clusters=10, budget=budget)
        rows = [len(screen.lists[(screen.centroids @ h).argmax()]) for h in contexts]
        assert np.mean(rows) <= budget
        answers = [nano.screen_topk(plain(softmax), screen, h, 1)[0] for h in contexts[::5]]
        found.append((np.stack(answers) == truth).mean())
    assert found == sorted(found)
    assert found[-1] > 0.95


def test_it_runs_on_the_softmax_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    nano.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("W (40000, 256)")
    assert [line.split("rows")[0].split() for line in lines[2:]] == [
        ["max_error", "0", "right", "20", "of", "20"],
        ["max_error", "1e-15", "right", "20", "of", "20"],
        ["draws", "right", "20", "of", "20"],
    ]
