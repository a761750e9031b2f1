"""Attacks on the bound that the certified plan computes on a GPU, judged in float64."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.results import Float64
from logitsieve.gpu.kernels.status import PASSED_ON, WANTED
from logitsieve.gpu.matrix import sketch_on
from logitsieve.gpu.plans.certified import CertifiedPlan
from logitsieve.heads import CertifiedHead, Softmax
from logitsieve.index_builder.fit.certified import Widths, encode
from tests.gpu.softmaxes import on_gpu, sweep, tensor
from tests.gpu.uppers import bounds_of
from tests.heads.test_certified import BIASES, MATRICES, WIDTHS, attacks, certified
from tests.oracle import best, logits64
from tests.synthetic import make_hidden


def planned(head: CertifiedHead, hidden: np.ndarray, k: int) -> CertifiedPlan:
    _, matrix = on_gpu(head._softmax)
    sketch = sketch_on(matrix.weight.device, head._arrays)
    return CertifiedPlan(matrix, sketch, tensor(hidden), k)


def assert_bounded(head: CertifiedHead, hidden: np.ndarray) -> None:
    """No logit of any row is beyond its bounds, which do not depend on the batch."""
    plan, true = planned(head, hidden, 1), true_logits(head, hidden)
    plan.coded.run()
    told = np.isin(plan.status.cpu().numpy(), int(WANTED))
    lowers, uppers, margins = bounds_of(plan, 16)
    assert (uppers + margins >= true)[told].all()
    assert (lowers - margins <= true)[told].all()
    np.testing.assert_array_equal(bounds_of(plan, 1)[1][told], uppers[told])


def answered(head: CertifiedHead, hidden: np.ndarray, k: int) -> CertifiedPlan:
    """A plan that has run, and found what the float64 judge finds."""
    plan = planned(head, hidden, k)
    plan.run()
    np.testing.assert_array_equal(plan.output.ids.cpu().numpy(), best(true_logits(head, hidden), k))
    assert plan.output.exact.all()
    return plan


def true_logits(head: CertifiedHead, hidden: np.ndarray) -> Float64:
    return logits64(head._softmax.weight, head._softmax.bias, hidden)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize(
    ("vocab_size", "dim", "share", "exponent", "widths", "bias"),
    [
        (129, 47, 0.5, 0, 0, "small"),
        (97, 80, 0.8, 3, 1, "none"),
        (100, 66, 1, 0, 0, "+-1e4"),
        (101, 5, 0.5, -38, 2, "none"),
        (99, 60, 1, 22, 1, "one huge"),
    ],
)
def test_no_attack_finds_a_wrong_answer_or_a_logit_beyond_its_bounds(
    matrix: str, vocab_size: int, dim: int, share: float, exponent: int, widths: int, bias: str
) -> None:
    random = np.random.default_rng(vocab_size)
    weight = MATRICES[matrix](random, vocab_size, dim).astype(np.float32)
    softmax = Softmax(weight, BIASES[bias](random, vocab_size).astype(np.float32))
    head = certified(softmax, WIDTHS[widths], share=share)
    hidden = (attacks(softmax, head, random) * 10.0**exponent).astype(np.float32)
    largest = np.linalg.norm(weight.astype(np.float64), axis=1).max()
    norms = np.linalg.norm(hidden.astype(np.float64), axis=1)
    hidden = hidden[(norms * largest < 5e37) & np.isfinite(hidden).all(axis=1)]
    assert len(hidden)
    assert_bounded(head, hidden)
    answered(head, hidden[::4], 3)


def with_codes(weight: np.ndarray, basis: np.ndarray, widths: Widths) -> CertifiedHead:
    softmax = Softmax(weight.astype(np.float32), np.zeros(len(weight), np.float32))
    return CertifiedHead(softmax, encode(softmax, basis.astype(np.float64), widths))


def test_codes_as_large_as_can_be() -> None:
    """All +-127 against +-16256, 504 of them: no sum may leave 31 bits."""
    signs = np.random.default_rng(2).choice([-1.0, 1.0], (97, 504))
    hidden = (3 * signs[:4]).astype(np.float32)
    head = with_codes(signs, np.eye(504), Widths(16, 512))
    # Rows have no coding error here: all that is left is the contexts' own.
    assert_bounded(head, np.concatenate([hidden, make_hidden(4, 504)]))
    plan = answered(head, hidden, 3)
    assert (plan.sketch.codes[:, :504].abs() == 127).all()
    assert (plan.output.ids[:, 0].cpu().numpy() == np.arange(4)).all()
    assert plan.output.scanned.max() < 97


@pytest.mark.parametrize("spread", sweep(1.5, more=[0.0]))
def test_contexts_along_the_axes_and_the_basis(spread: float) -> None:
    random = np.random.default_rng(3)
    left, right = (np.linalg.qr(random.standard_normal((24, 24)))[0] for _ in range(2))
    basis = left @ np.diag(10.0 ** random.uniform(-spread, spread, 24)) @ right
    head = with_codes(random.standard_normal((130, 24)), basis, Widths(16, 64))
    hidden = np.concatenate([np.eye(24)[:5], basis[:4], np.linalg.inv(basis).T[-4:]])
    assert_bounded(head, hidden.astype(np.float32))
    answered(head, hidden[::4].astype(np.float32), 2)


@pytest.mark.parametrize("rows", sweep(3, more=[1]))
def test_a_sketch_of_few_coordinates_of_many(rows: int) -> None:
    random = np.random.default_rng(4)
    head = with_codes(random.standard_normal((130, 300)), np.eye(300), Widths(16, 64))
    assert_bounded(head, make_hidden(rows, 300))
    answered(head, make_hidden(rows, 300), 4)


def test_what_float32_could_not_hold_is_passed_on() -> None:
    """Coordinates far longer than rows and contexts: parts of a logit overflow, the logit not."""
    random = np.random.default_rng(0)
    weight = 1e15 * random.standard_normal((200, 40))
    left, right = (np.linalg.qr(random.standard_normal((40, 40)))[0] for _ in range(2))
    turned = left @ np.diag(10.0 ** random.uniform(-1.5, 1.5, 40)) @ right
    head = with_codes(weight, turned, Widths(16, 64))
    hidden = random.standard_normal((4, 40)) * (5e36 / np.linalg.norm(weight, axis=1).max())
    hidden[3] = 1.0
    assert_bounded(head, hidden.astype(np.float32))
    plan = answered(head, hidden.astype(np.float32), 4)
    assert plan.output.scanned[:3].tolist() == [200] * 3
    plan.coded.run()
    assert plan.status.tolist() == [int(PASSED_ON)] * 3 + [int(WANTED)]
