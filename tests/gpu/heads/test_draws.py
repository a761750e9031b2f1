"""Draws of `exact` and `certified` on a GPU are those of `exact` on the host, asked any way."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.gpu.device import device_named
from logitsieve.gpu.heads import draws, gpu_heads
from logitsieve.gpu.heads.draws import GpuDrawHead, GpuExact, cut
from logitsieve.heads import HEADS, ExactHead
from logitsieve.heads._base.draw_options import DrawOptions
from logitsieve.kernels.topk.merge import HIGH, LOW, TOP, VALUE
from tests.gpu.draw_plans import assert_within
from tests.oracle import drawn, filtered, logits64
from tests.synthetic import ARRAYS, make_hidden, make_softmax

SOFTMAX = make_softmax(300, 12)
HOST = ExactHead(SOFTMAX)
DRAWING = pytest.mark.parametrize("name", ["exact", "certified"])
SEEDS = np.array([3, (1 << 64) - 5, 7], np.uint64)
SCALE, STEP = 1.4, (1 << 64) - 1
EDITS = (
    np.array([0, 0, 2, 3]),
    np.array([4, 299, 17], np.int32),
    np.array([-np.inf, 4.0, -np.inf]),
)


@pytest.fixture(scope="module")
def heads() -> dict[str, GpuDrawHead]:
    """Both on one GPU."""
    parts = {"sketch": ARRAYS["certified"](SOFTMAX)}
    knobs: dict[str, dict[str, float]] = {"exact": {}, "certified": {}}
    found = gpu_heads(HEADS, SOFTMAX, parts, knobs, 1, device_named("cuda"))
    return cast(dict[str, GpuDrawHead], found)


def assert_log_z(found: np.ndarray, host: np.ndarray) -> None:
    """The host's but for its last bits, or an interval around it."""
    if found[:, TOP].any():
        np.testing.assert_array_equal(found[:, TOP], host[:, TOP])
        # Bounds leave room for what underflows, of however many ids.
        np.testing.assert_allclose(found[:, VALUE:], host[:, VALUE:], rtol=2e-12, atol=1e-290)
        assert (found[:, LOW] <= host[:, HIGH]).all()
        assert (host[:, LOW] <= found[:, HIGH]).all()
    else:
        assert_within(found[:, VALUE:], SCALE * host[:, TOP] + host[:, VALUE])


@DRAWING
@pytest.mark.parametrize("samples", [0, 1, 4])
@pytest.mark.parametrize("edited", [False, True])
def test_arrays(heads: dict[str, GpuDrawHead], name: str, samples: int, edited: bool) -> None:
    hidden, edits = make_hidden(3, 12), EDITS if edited else None
    ids, log_z, scanned = heads[name].draw(hidden, DrawOptions(samples, SEEDS, STEP, SCALE, edits))
    expected = HOST.draw(hidden, DrawOptions(samples, SEEDS, STEP, SCALE, edits))
    np.testing.assert_array_equal(ids, expected[0])
    assert_log_z(log_z, expected[1])
    assert (scanned <= 300).all()
    assert [each.dtype for each in (ids, log_z, scanned)] == [np.int32, np.float64, np.int32]


@DRAWING
@pytest.mark.parametrize("edited", [False, True])
def test_arrays_of_what_filters_leave(
    heads: dict[str, GpuDrawHead], name: str, edited: bool
) -> None:
    hidden, edits = make_hidden(3, 12), EDITS if edited else None
    choices: list[Any] = [{"top_p": 0.8, "min_p": 0.01}, {"min_p": 0.05}]
    for filters in choices:
        options = DrawOptions(4, SEEDS, STEP, SCALE, edits, **filters)
        ids, log_z, scanned = heads[name].draw(hidden, options)
        expected = HOST.draw(hidden, options)
        np.testing.assert_array_equal(ids, expected[0])
        assert_log_z(log_z, expected[1])
        assert scanned.tolist() == [300] * 3


@DRAWING
@pytest.mark.parametrize("edited", [False, True])
def test_more_draws_than_a_plan_holds_come_from_several(
    heads: dict[str, GpuDrawHead], name: str, edited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draws, "SLOTS_AT_ONCE", 3)  # so that 3 are 2 + 1, for a row at once
    hidden, edits = make_hidden(3, 12), EDITS if edited else None
    ids, log_z, scanned = heads[name].draw(hidden, DrawOptions(3, SEEDS, STEP, SCALE, edits))
    expected = HOST.draw(hidden, DrawOptions(3, SEEDS, STEP, SCALE, edits))
    np.testing.assert_array_equal(ids, expected[0])
    assert_log_z(log_z, expected[1])
    assert (scanned <= 300).all()
    there = torch.from_numpy(hidden).to(device_named("cuda"))
    if not edited:
        seeds: Any = torch.from_numpy(SEEDS.view(np.int64)).to(there.device)
        drawn: Any = heads[name].draw(there, DrawOptions(3, seeds, STEP, SCALE))
        np.testing.assert_array_equal(drawn[0].cpu().numpy(), expected[0])


@pytest.mark.parametrize("samples", [0, 1, 15, 16, 4094, 4095, 5000, 1 << 20])
def test_a_plan_holds_so_much_and_no_more(samples: int) -> None:
    found = list(draws.portions(samples))
    assert sum(some for _, some in found) == samples
    assert [first for first, _ in found] == [4095 * n for n in range(len(found))]
    most = max(some for _, some in found)
    assert (most + 1) * draws.rows_at_once(most) <= 4096


@DRAWING
@pytest.mark.parametrize("samples", [0, 3])
def test_tensors(heads: dict[str, GpuDrawHead], name: str, samples: int) -> None:
    hidden = make_hidden(3, 12)
    there = torch.from_numpy(hidden).to(device_named("cuda"), torch.float64)
    seeds: Any = torch.from_numpy(SEEDS.view(np.int64)).to(there.device)
    found: Any = heads[name].draw(there, DrawOptions(samples, seeds, STEP, SCALE))
    same = heads[name].draw(hidden, DrawOptions(samples, SEEDS, STEP, SCALE))
    for mine, theirs in zip(found, same, strict=True):
        assert mine.device == there.device
        np.testing.assert_array_equal(mine.cpu().numpy(), theirs)


@DRAWING
def test_a_bad_row_raises_or_is_told_from_the_others(
    heads: dict[str, GpuDrawHead], name: str
) -> None:
    hidden = make_hidden(3, 12)
    hidden[1, 2] = np.nan
    for edits in (None, EDITS):
        with pytest.raises(InvalidRequest, match=r"hidden\[1\]"):
            heads[name].draw(hidden, DrawOptions(1, SEEDS, STEP, SCALE, edits))
    there = torch.from_numpy(hidden).to(device_named("cuda"))
    seeds: Any = torch.from_numpy(SEEDS.view(np.int64)).to(there.device)
    drawn: Any = heads[name].draw(there, DrawOptions(2, seeds, STEP, SCALE))
    assert (drawn.ids < 0).any(1).tolist() == [False, True, False]
    assert drawn.log_z.reshape(3, -1).isnan().any(1).tolist() == [False, True, False]


@pytest.mark.parametrize("filters", [(0.9, 0.0), (1.0, 0.05)])
def test_filtered_draws_from_several_plans(
    heads: dict[str, GpuDrawHead], filters: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, hidden = cast(GpuExact, heads["exact"]), make_hidden(3, 12)
    there = torch.from_numpy(hidden).to(device_named("cuda"))
    asked = 3, torch.from_numpy(SEEDS.view(np.int64)).to(there.device), STEP, (SCALE, *filters)
    whole = exact.draw_filtered(there, *asked)
    monkeypatch.setattr(draws, "SLOTS_AT_ONCE", 3)  # so that 3 are 2 + 1
    monkeypatch.setattr(draws, "LOGITS_AT_ONCE", 600)
    for one, other in zip(whole, exact.draw_filtered(there, *asked), strict=True):
        assert torch.equal(one, other)
    for row, logits in enumerate(logits64(SOFTMAX.weight, SOFTMAX.bias, hidden)):
        left = filtered(logits, 1 / SCALE, 0, *filters)
        expected = drawn(logits, 3, int(SEEDS[row]), STEP, 1 / SCALE, left)
        assert whole[0][row].tolist() == expected
        assert whole[1][row].tolist() == logits[expected].tolist()


def test_edits_of_some_rows() -> None:
    offsets, ids, values = cut(EDITS, slice(1, 3))
    assert offsets.tolist() == [0, 2, 3]
    np.testing.assert_array_equal(ids, EDITS[1])
    np.testing.assert_array_equal(values, EDITS[2])
    assert [each.tolist() for each in cut(EDITS, slice(2, 3))] == [[0, 1], [17], [-np.inf]]
