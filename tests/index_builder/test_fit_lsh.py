from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from logitsieve.heads import Head, Softmax
from logitsieve.heads.lsh import LshHead
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fit_lsh import draw_planes, fit_lsh, hash_vectors, of_queries
from logitsieve.index_builder.fitted import Made
from logitsieve.index_builder.lsh_reduction import (
    COSINE,
    HEADROOM,
    MIPS,
    RANGED,
    Reduction,
    best_beta,
    squared_norms,
)
from logitsieve.index_builder.material import Material
from logitsieve.types.errors import InvalidRequest
from tests.index_builder.clustered import make_exact, make_material
from tests.synthetic import make_hidden, make_softmax

CONFIG = BuildConfig(seed=5, lsh_memory=4, lsh_tables=64)


def ignore(stage: str, done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def made() -> tuple[Softmax, Material, Made]:
    softmax, material = make_material(vocab_size=400, heldout=700)
    return softmax, material, fit_lsh(material, CONFIG, ignore)


def serve(softmax: Softmax, made: Made) -> Head:
    exact = make_exact(softmax)
    return LshHead.from_arrays(softmax, made.arrays, fallback=exact, threads=1, knobs=made.knobs)


def memory(made: Made, softmax: Softmax) -> float:
    tables = sum(array.nbytes for array in made.arrays.values())
    return tables / (softmax.weight.nbytes + softmax.bias.nbytes)


def test_what_is_found_reaches_the_recall_and_serves(made: tuple[Softmax, Material, Made]) -> None:
    softmax, material, lsh = made
    assert lsh.summary["reaches"]
    hidden = material.heldout.between(0, material.heldout.rows).sample(material.heldout.rows)
    head = serve(softmax, lsh)
    top = head.topk(hidden, 1)
    recall = (top.ids[:, 0] == material.heldout_labels[:, 0]).mean()
    assert recall >= CONFIG.lsh_recall
    assert recall == pytest.approx(lsh.summary["recall"], abs=0.05)
    scanned = top.scanned.mean() / softmax.vocab_size
    assert scanned == pytest.approx(lsh.summary["scanned"], abs=0.05)
    assert scanned < 0.6


def test_the_summary_tells_the_cheapest_that_reaches(made: tuple[Softmax, Material, Made]) -> None:
    _, _, lsh = made
    reaching = [entry for entry in lsh.history if entry["reaches"]]
    assert dict(lsh.summary) == min(reaching, key=lambda entry: entry["cost"])
    assert {entry["ranges"] for entry in lsh.history} == {COSINE, MIPS, RANGED}
    assert {entry["probes"] for entry in lsh.history} == {1, 2, 4, 8}
    planes = lsh.arrays["planes"]
    assert planes.shape[:2] == (lsh.summary["tables"], lsh.summary["bits"])
    for knob in ("probes", "candidates"):
        assert lsh.knobs[knob] == lsh.summary[knob]


def test_equal_inputs_give_equal_arrays(made: tuple[Softmax, Material, Made]) -> None:
    _, material, first = made
    again = fit_lsh(material, CONFIG, ignore)
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])
    assert first.summary == again.summary
    assert first.history == again.history
    threaded = fit_lsh(material, replace(CONFIG, threads=2), ignore)
    np.testing.assert_array_equal(first.arrays["ids"], threaded.arrays["ids"])
    other = fit_lsh(material, replace(CONFIG, seed=6), ignore)
    assert first.arrays["planes"].tobytes() != other.arrays["planes"].tobytes()


@pytest.mark.parametrize("allowed", [0.3, 1.0])
def test_the_memory_holds(allowed: float) -> None:
    softmax, material = make_material(vocab_size=400)
    lsh = fit_lsh(material, replace(CONFIG, lsh_memory=allowed), ignore)
    assert memory(lsh, softmax) <= allowed


def test_a_recall_out_of_reach_gets_the_nearest() -> None:
    softmax, material = make_material(vocab_size=400)
    lsh = fit_lsh(material, replace(CONFIG, lsh_recall=1.0, lsh_tables=1), ignore)
    assert not lsh.summary["reaches"]
    assert lsh.summary["recall"] == max(entry["recall"] for entry in lsh.history)
    assert lsh.knobs["candidates"] == 0
    serve(softmax, lsh).topk(material.sample[:5], 5)


def test_memory_for_less_than_one_table_is_refused() -> None:
    _, material = make_material()
    with pytest.raises(InvalidRequest, match="one table of 4 bits") as error:
        fit_lsh(material, replace(CONFIG, lsh_memory=0.001), ignore)
    assert error.value.field == "lsh_memory"


@pytest.mark.parametrize(
    "wrong", [{"lsh_recall": 0.0}, {"lsh_recall": 1.1}, {"lsh_tables": 0}, {"lsh_memory": -1.0}]
)
def test_options_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    (field,) = wrong
    with pytest.raises(InvalidRequest) as error:
        BuildConfig(**wrong)  # type: ignore[arg-type]
    assert error.value.field == field


def test_a_few_contexts_and_words_are_enough() -> None:
    softmax, material = make_material(rows=30, heldout=3, vocab_size=12)
    lsh = fit_lsh(material, replace(CONFIG, lsh_memory=10), ignore)
    serve(softmax, lsh).topk(material.sample, 5)


def test_beta_minimises_the_product_of_norms() -> None:
    softmax = make_softmax()
    squares, bias = squared_norms(softmax), softmax.bias.astype(np.float64)
    power = 7.0
    beta = best_beta(squares, bias, power)
    x = beta**2 * np.geomspace(1e-3, 1e3, 2001)
    badness = (squares[:, None] + bias[:, None] ** 2 / x).max(axis=0) * (power + x)
    least = (squares + bias**2 / beta**2).max() * (power + beta**2)
    assert least <= badness.min() * (1 + 1e-9)
    assert best_beta(squares, np.zeros_like(bias), power) == 1.0


@pytest.mark.parametrize("ranges", [COSINE, MIPS, RANGED])
def test_vectors_of_one_length_that_keep_the_order_of_logits(ranges: int) -> None:
    softmax, beta = make_softmax(), 0.7
    reduction = Reduction.of(softmax, squared_norms(softmax), ranges, beta)
    rows = np.arange(softmax.vocab_size)
    vectors = reduction.vectors(rows)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(reduction.vectors(rows[40:50]), vectors[40:50])
    hidden = make_hidden(9)
    lifted = np.concatenate([hidden, np.full((9, 1), beta), np.zeros((9, 1))], axis=1)
    logits = hidden @ softmax.weight.T + softmax.bias
    np.testing.assert_allclose(lifted @ vectors.T * reduction.largest, logits, atol=1e-4)
    if ranges == COSINE:
        assert not vectors[:, -1].any()
    else:
        assert len(np.unique(reduction.largest)) == ranges
    if ranges == MIPS:
        np.testing.assert_allclose(reduction.largest, HEADROOM * reduction.norms.max())


def test_queries_hash_as_their_lifted_vectors_do() -> None:
    planes = draw_planes(5, 6, 24, seed=1)
    np.testing.assert_array_equal(draw_planes(3, 6, 24, seed=1), planes[:3])
    hidden, beta = make_hidden(50), 1.7
    lifted = np.concatenate([hidden, np.full((50, 1), beta), np.zeros((50, 1))], axis=1)
    own, shifts = of_queries(planes, beta)
    sides = np.einsum("bx,lnx->bln", lifted, planes)
    direct = np.einsum("bd,lnd->bln", hidden, own) + shifts.reshape(5, 6)
    np.testing.assert_allclose(sides, direct, rtol=1e-4, atol=1e-4)
    codes = hash_vectors(lifted.astype(np.float32), planes, threads=2)
    np.testing.assert_array_equal(codes, (sides > 0) @ (1 << np.arange(6)))


@pytest.mark.parametrize("scale", [1e-30, 1e15])
def test_scales_do_not_matter(scale: float) -> None:
    softmax = make_softmax()
    scaled = Softmax(
        (softmax.weight * scale).astype(np.float32), (softmax.bias * scale).astype(np.float32)
    )
    for ranges in (COSINE, MIPS, RANGED):
        first = Reduction.of(softmax, squared_norms(softmax), ranges, 1.0)
        other = Reduction.of(scaled, squared_norms(scaled), ranges, 1.0)
        rows = np.arange(softmax.vocab_size)
        np.testing.assert_allclose(first.vectors(rows), other.vectors(rows), atol=1e-6)


def test_a_softmax_of_zeros_has_vectors() -> None:
    softmax = Softmax(np.zeros((5, 3), np.float32), np.zeros(5, np.float32))
    squares = squared_norms(softmax)
    beta = best_beta(squares, softmax.bias.astype(np.float64), 1.0)
    for ranges in (COSINE, MIPS, RANGED):
        vectors = Reduction.of(softmax, squares, ranges, beta).vectors(np.arange(5))
        assert np.isfinite(vectors).all()
