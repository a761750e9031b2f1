from dataclasses import replace

import numpy as np
import pytest

from logitsieve.heads import Head, Softmax
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fit.lsh import Setting, fit_lsh
from logitsieve.index_builder.fitting import FitInputs, FitResult
from logitsieve.index_builder.reduction import draw_planes, hash_vectors, query_planes
from tests.index_builder.clustered import make_inputs
from tests.refusals import refused
from tests.synthetic import make_head, make_hidden

CONFIG = BuildConfig(seed=5, lsh_memory=4, lsh_tables=64)


@pytest.fixture(scope="module")
def made() -> tuple[Softmax, FitInputs, FitResult]:
    softmax, inputs = make_inputs(vocab_size=400, heldout=700)
    return softmax, inputs, fit_lsh(replace(inputs, config=CONFIG))


def serve(softmax: Softmax, made: FitResult) -> Head:
    return make_head("lsh", softmax, arrays=made.arrays, **made.knobs)


def memory(made: FitResult, softmax: Softmax) -> float:
    tables = sum(array.nbytes for array in made.arrays.values())
    return tables / (softmax.weight.nbytes + softmax.bias.nbytes)


def test_the_setting_reaches_the_recall(made: tuple[Softmax, FitInputs, FitResult]) -> None:
    softmax, inputs, lsh = made
    assert lsh.summary["reaches"]
    top = serve(softmax, lsh).topk(inputs.heldout.sample(inputs.heldout.rows), 1)
    recall = (top.ids[:, 0] == inputs.heldout_labels[:, 0]).mean()
    assert recall >= CONFIG.lsh_recall
    assert recall == pytest.approx(lsh.summary["recall"], abs=0.05)
    scanned = top.scanned.mean() / softmax.vocab_size
    assert scanned == pytest.approx(lsh.summary["scanned"], abs=0.05)
    assert scanned < 0.6


def test_the_cheapest_that_reaches_comes_first_then_the_nearest() -> None:
    some = Setting(
        ranges=0, beta=1, bits=4, tables=8, probes=1, candidates=9,
        recall=0.95, scanned=0.1, cost=0.2, reaches=True,
    )  # fmt: skip
    ranked = [
        replace(some, cost=0.1),
        some,
        replace(some, reaches=False, recall=0.8, cost=0.05),
        replace(some, reaches=False, recall=0.7, cost=0.01),
    ]
    ranks = [setting.rank for setting in ranked]
    assert ranks == sorted(ranks)


def test_equal_inputs_give_equal_arrays(made: tuple[Softmax, FitInputs, FitResult]) -> None:
    _, inputs, first = made
    again = fit_lsh(replace(inputs, config=CONFIG))
    np.testing.assert_equal(first.arrays, again.arrays)
    assert first.summary == again.summary
    threaded = fit_lsh(replace(inputs, config=replace(CONFIG, threads=2)))
    np.testing.assert_array_equal(first.arrays["ids"], threaded.arrays["ids"])
    other = fit_lsh(replace(inputs, config=replace(CONFIG, seed=6)))
    assert first.arrays["planes"].tobytes() != other.arrays["planes"].tobytes()


@pytest.mark.parametrize("allowed", [0.3, 1.0])
def test_the_memory_holds(allowed: float) -> None:
    softmax, inputs = make_inputs(vocab_size=400)
    lsh = fit_lsh(replace(inputs, config=replace(CONFIG, lsh_memory=allowed)))
    assert memory(lsh, softmax) <= allowed


def test_recall_and_memory_beyond_reach_and_few_contexts() -> None:
    softmax, inputs = make_inputs(vocab_size=400)
    lsh = fit_lsh(replace(inputs, config=replace(CONFIG, lsh_recall=1.0, lsh_tables=1)))
    assert not lsh.summary["reaches"]
    assert lsh.knobs["candidates"] == 0
    serve(softmax, lsh).topk(inputs.sample[:5], 5)
    _, inputs = make_inputs()
    with refused("lsh_memory", "one table of 4 bits"):
        fit_lsh(replace(inputs, config=replace(CONFIG, lsh_memory=0.001)))
    softmax, inputs = make_inputs(rows=30, heldout=3, vocab_size=12)
    lsh = fit_lsh(replace(inputs, config=replace(CONFIG, lsh_memory=10)))
    top = serve(softmax, lsh).topk(inputs.sample, 5)
    assert (np.diff(np.sort(top.ids, axis=1)) > 0).all()


def test_queries_hash_as_their_lifted_vectors_do() -> None:
    planes = draw_planes(5, 6, 24, seed=1)
    np.testing.assert_array_equal(draw_planes(3, 6, 24, seed=1), planes[:3])
    hidden_states, beta = make_hidden(50), 1.7
    lifted = np.concatenate([hidden_states, np.full((50, 1), beta), np.zeros((50, 1))], axis=1)
    own, shifts = query_planes(planes, beta)
    sides = np.einsum("bx,lnx->bln", lifted, planes)
    direct = np.einsum("bd,lnd->bln", hidden_states, own) + shifts.reshape(5, 6)
    np.testing.assert_allclose(sides, direct, rtol=1e-4, atol=1e-4)
    codes = hash_vectors(lifted.astype(np.float32), planes, threads=2)
    np.testing.assert_array_equal(codes, (sides > 0) @ (1 << np.arange(6)))


def test_a_large_vocabulary_is_judged_by_some_of_its_words() -> None:
    softmax, inputs = make_inputs(rows=20, heldout=200, vocab_size=24_000)
    lsh = fit_lsh(replace(inputs, config=replace(CONFIG, lsh_tables=12)))
    top = serve(softmax, lsh).topk(inputs.heldout.sample(200), 1)
    recall = (top.ids[:, 0] == inputs.heldout_labels[:, 0]).mean()
    assert recall == pytest.approx(lsh.summary["recall"], abs=0.05)
    assert top.scanned.mean() / 24_000 == pytest.approx(lsh.summary["scanned"], abs=0.02)
    assert lsh.arrays["ids"].size == lsh.summary["tables"] * 24_000
