"""The certified plan's answers are the exact head's, bit for bit; and it saves work at all."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.results import TopK
from logitsieve.gpu.kernels.status import ANSWERED, PASSED_ON
from logitsieve.gpu.matrix import DeviceSketch, Matrix, sketch_on
from logitsieve.gpu.plans import empty_output
from logitsieve.gpu.plans.certified import CertifiedPlan, room_of
from logitsieve.gpu.plans.exact import fits
from logitsieve.heads import ExactHead, Softmax
from logitsieve.index_builder.fit.certified import Widths, encode, rotation
from tests.gpu.softmaxes import TYPES, on_gpu, sweep, tensor
from tests.gpu.uppers import bounds_of
from tests.heads.test_certified import decaying
from tests.synthetic import make_hidden, make_softmax

WIDTHS = Widths(16, 64)


def sketched(
    softmax: Softmax, seen: np.ndarray, dtype: str = "float32", widths: Widths = WIDTHS
) -> tuple[Softmax, Matrix, DeviceSketch]:
    """The softmax as stored, and on the device with a sketch turned towards the contexts `seen`."""
    stored, matrix = on_gpu(softmax, dtype)
    arrays = encode(stored, rotation(stored, seen), widths)
    return stored, matrix, sketch_on(matrix.weight.device, arrays)


def assert_top(plan: CertifiedPlan, top: TopK) -> None:
    np.testing.assert_array_equal(plan.output.ids.cpu().numpy(), top.ids)
    np.testing.assert_array_equal(plan.output.logits.cpu().numpy(), top.logits)
    assert plan.output.exact.all()


def assert_same(
    softmax: Softmax, hidden: np.ndarray, k: int, dtype: str = "float32", widths: Widths = WIDTHS
) -> CertifiedPlan:
    stored, matrix, sketch = sketched(softmax, hidden, dtype, widths)
    assert fits(matrix.rows, k)
    plan = CertifiedPlan(matrix, sketch, tensor(hidden), k)
    plan.run()
    assert_top(plan, ExactHead(stored).topk(hidden, k))
    return plan


@pytest.mark.parametrize(
    ("dtype", "rows", "vocab_size", "dim", "k"),
    sweep(
        ("float32", 1, 700, 33, 1), ("float16", 5, 500, 17, 3), ("bfloat16", 1, 400, 33, 1),
        more=[
            (dtype, *shape) for dtype in TYPES for shape in ((1, 700, 33, 1), (5, 999, 17, 3))
        ],
    ),
)  # fmt: skip
def test_answers_are_the_exact_heads(
    dtype: str, rows: int, vocab_size: int, dim: int, k: int
) -> None:
    assert_same(make_softmax(vocab_size, dim), make_hidden(rows, dim), k, dtype)


@pytest.mark.parametrize(
    ("rows", "vocab_size", "dim", "k"),
    sweep((2, 320, 70, 10), (17, 96, 8, 2), more=[(1, 2049, 40, 64), (33, 160, 8, 2)]),
)
def test_many_answers_and_many_rows(rows: int, vocab_size: int, dim: int, k: int) -> None:
    assert_same(make_softmax(vocab_size, dim), make_hidden(rows, dim), k)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("widths", sweep(Widths(16, 192), more=[(Widths(16, 320),)]))
def test_codes_of_every_width(rows: int, widths: Widths) -> None:
    assert_same(make_softmax(500, 200), make_hidden(rows, 200), 5, widths=widths)


@pytest.mark.parametrize("scale", [2.0**-60, 2.0**40])
def test_scales(scale: float) -> None:
    assert_same(make_softmax(600, 9, scale=scale), make_hidden(2, 9, scale=scale), 4)


def test_one_dimension() -> None:
    assert_same(make_softmax(300, 1), make_hidden(2, 1), 4)


def test_groups_of_more_than_sixteen() -> None:
    softmax, hidden = make_softmax(1500, 14), make_hidden(2, 14)
    stored, matrix, sketch = sketched(softmax, hidden)
    plan = CertifiedPlan(matrix, sketch, tensor(hidden), 5)
    plan.group, plan.groups = 32, 47  # as they are where V is above 2^18
    plan.run()
    assert_top(plan, ExactHead(stored).topk(hidden, 5))
    assert plan.output.scanned.max() < 200


def test_few_rows_are_computed_where_the_spectrum_decays() -> None:
    softmax, hidden = decaying(4000, 96)
    plan = assert_same(softmax, hidden[:4], 5)
    assert plan.output.scanned.sum() / 4 < 200


def test_every_row_that_reaches_the_threshold_is_computed_once() -> None:
    softmax, hidden = make_softmax(900, 76), make_hidden(3, 76)
    stored, matrix, sketch = sketched(softmax, make_hidden(400, 76, seed=8))
    plan = CertifiedPlan(matrix, sketch, tensor(hidden), 2)
    plan.run()
    assert_top(plan, ExactHead(stored).topk(hidden, 2))
    assert (plan.done < plan.sizes).any()  # not all among the first
    _, uppers, margins = bounds_of(plan, 16)
    for row, count in enumerate(plan.output.scanned.tolist()):
        first = np.sort(plan.values[row, : plan.done[row]].cpu().numpy())
        below = first[-2] - margins[row, 0] - float(plan.ends[0, row])
        assert 0 <= below < 1e-5 * first[-2]
        wanted = np.flatnonzero(uppers[row] >= float(plan.ends[:, row].min()))
        assert sorted(plan.ids[row, :count].tolist()) == wanted.tolist()


def test_where_too_many_rows_are_in_doubt_all_are_scanned() -> None:
    softmax, hidden = make_softmax(1100, 300), make_hidden(3, 300)
    softmax.weight[7, :2], hidden[1] = 100, np.eye(300)[0]
    stored, matrix, sketch = sketched(softmax, make_hidden(400, 300, seed=9))
    plan = CertifiedPlan(matrix, sketch, tensor(hidden), 1)
    plan.run()
    assert_top(plan, ExactHead(stored).topk(hidden, 1))
    scanned = plan.output.scanned.tolist()
    assert scanned[0] == scanned[2] == 1100
    assert scanned[1] < room_of(1100)


def test_equal_logits_come_by_the_lower_id() -> None:
    softmax = make_softmax(900, 12)
    twins = Softmax(np.repeat(softmax.weight[:300], 3, axis=0), np.zeros(900, np.float32))
    assert_same(twins, make_hidden(3, 12), 7)


def test_a_row_of_zeros_ties_everything() -> None:
    softmax, hidden = make_softmax(600, 12), make_hidden(2, 12)
    hidden[1] = 0
    plan = assert_same(Softmax(softmax.weight, np.zeros(600, np.float32)), hidden, 5)
    assert plan.output.ids[1].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("value", sweep(np.nan, 3e38, more=[np.inf, -np.inf]))
def test_rows_that_cannot_be_answered_have_no_ids(value: float) -> None:
    softmax, hidden = make_softmax(700, 9), make_hidden(3, 9)
    stored, matrix, sketch = sketched(softmax, hidden)
    hidden[1, 5] = value
    plan = CertifiedPlan(matrix, sketch, tensor(hidden), 4)
    plan.run()
    top = ExactHead(stored).topk(hidden[[0, 2]], 4)
    np.testing.assert_array_equal(plan.output.ids.cpu().numpy()[[0, 2]], top.ids)
    assert plan.output.ids[1].tolist() == [-1] * 4
    assert plan.output.logits[1].isnan().all()
    assert plan.output.exact.tolist() == [1, 0, 1]
    assert plan.output.scanned[1] == 0


def test_a_plan_answers_one_batch_after_another() -> None:
    softmax = make_softmax(800, 20)
    first, second = make_hidden(4, 20, seed=1), make_hidden(4, 20, seed=2)
    first[2] = np.nan
    stored, matrix, sketch = sketched(softmax, second)
    plan = CertifiedPlan(matrix, sketch, tensor(first), 6)
    plan.run()
    plan.hidden.copy_(tensor(second))
    plan.run()
    assert_top(plan, ExactHead(stored).topk(second, 6))


@pytest.mark.parametrize(
    ("rows", "passed"), sweep((1, [0]), (5, [1, 4]), (70, [3]), more=[(5, [])])
)
def test_a_fallback_answers_the_rows_that_were_passed_on(rows: int, passed: list[int]) -> None:
    softmax, hidden = make_softmax(400, 12), make_hidden(rows, 12)
    stored, matrix, sketch = sketched(softmax, hidden)
    others = np.setdiff1d(np.arange(rows), passed)
    wanted = ExactHead(stored).topk(hidden, 3)
    hidden[others[:1]] = np.nan  # answered before: nobody looks at it
    found, status = empty_output(rows, 3, matrix.weight.device), np.full(rows, ANSWERED, np.int32)
    for buffer in found:
        buffer.fill_(-7)
    status[passed] = PASSED_ON
    states = tensor(status)
    plan = CertifiedPlan(matrix, sketch, tensor(hidden), 3, after=(found, states))
    plan.maxima.fill_(7.0)
    plan.run()
    np.testing.assert_array_equal(found.ids.cpu().numpy()[passed], wanted.ids[passed])
    np.testing.assert_array_equal(found.logits.cpu().numpy()[passed], wanted.logits[passed])
    assert found.exact[passed].tolist() == [1] * len(passed)
    assert all((buffer[others] == -7).all() for buffer in found)
    assert (states == int(ANSWERED)).all()
    assert (plan.maxima[64:] == 7).all()  # a block without one is left out
