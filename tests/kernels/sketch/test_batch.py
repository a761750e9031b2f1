"""Batches of a sketch by AMX: the sums of one query after the other, and so the same answers."""

import numpy as np
import pytest

from logitsieve.api.results import Float32
from logitsieve.heads import FullHead, SketchHead, Softmax
from logitsieve.heads.sketch import GRADES
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.amx import CONFIGURED, configure_tiles, may_use_tiles, release_tiles
from logitsieve.kernels.simd.byte_lanes import scale_sums
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.lanes import LANES, splat32, store, zeros32
from logitsieve.kernels.simd.pointers import (
    int64_pointer,
    keep_alive,
    nowhere,
    pointer,
    shift,
    size_of,
)
from logitsieve.kernels.sketch import sketch
from logitsieve.kernels.sketch.batch import (
    FIRST,
    LAST,
    LEAST,
    MEASURED,
    MIDDLE,
    TILE,
    TO_LAST,
    TO_MIDDLE,
    add_query,
    batch_at,
    begin_batch,
    fill_coarse,
    fill_level,
)
from logitsieve.kernels.sketch.batch_bounds import coarse_sums, more_sums
from logitsieve.kernels.sketch.bounds import sum_four
from logitsieve.kernels.sketch.encode_query import coded_at, encode_query, factors_of, turn_rows
from logitsieve.kernels.sketch.levels import add_planes, codes_of, levels_of
from logitsieve.kernels.topk.descriptor import widen_hidden
from tests.oracle import best, logits64
from tests.synthetic import make_hidden, make_softmax, rotated, sketch_arrays, sketch_head

pytestmark = [
    pytest.mark.xdist_group("sketch"),
    pytest.mark.skipif(not may_use_tiles(), reason="no AMX, or a Linux before 5.16"),
]

ROWS = LANES * TILE * 3 - 5
KINDS = (FIRST, 0), (MIDDLE, 1), (LAST, 2), (TO_MIDDLE, 1), (TO_LAST, 2)


@kernel("(int64, float32[:,::1], int64, int64, int64, float32[:,:,:,::1])")
def sums_by_both(address, hidden, kind, place, first, sums):  # type: ignore[no-untyped-def]
    """Fill sums [4, Q, TILE, 16], by query and by AMX: of level 0, then to the level at `place`.

    Returns whether tiles are used.
    """
    descriptor, (count, dim) = int64_pointer(address), hidden.shape
    each, own = size_of(coded_at(descriptor, nowhere())), sketch.sketch_at(descriptor)
    wide, size = padded(dim), size_of(batch_at(descriptor, nowhere(), count))
    scratch = np.empty(count * each + wide + size + 8, np.float64)
    start = pointer(scratch)
    batch = batch_at(descriptor, shift(start, count * each + wide), count)
    begin_batch(descriptor, batch, count)
    turn_rows(descriptor, pointer(hidden), count, start, each)
    last, plane = min(first + TILE, own.groups), count * TILE * LANES
    for q in range(count):
        coded = coded_at(descriptor, row_of(start, q, each))
        h = row_of(pointer(hidden), q, dim)
        encode_query(descriptor, widen_hidden(descriptor, h, shift(start, count * each)), coded)
        add_query(descriptor, batch, q, coded)
    configure_tiles(batch.config)
    fill_coarse(own, batch, first, last)
    configure_tiles(shift(batch.config, CONFIGURED))
    fill_level(own, batch, place, kind, first, last, TILE)
    release_tiles()
    for q in range(count):
        coded = coded_at(descriptor, row_of(start, q, each))
        read = levels_of(own, factors_of(coded.factors))
        for group in range(first, last):
            slot, total, found = group - first, zeros32(), zeros32()
            base = sum_four(own, coded.planes, group, last)[0], coarse_sums(batch, q, slot)
            for number in range(place + 1):
                level, before = read[number], total if kind < TO_MIDDLE else found
                if number == place:
                    found = more_sums(batch, level, q, place, slot, before)
                total = add_planes(own, level, coded.tables, total, group, codes_of(level, group))
            offset = (q * TILE + slot) * LANES
            whole = splat32(1.0)
            store(shift(pointer(sums), 0 * plane), offset, scale_sums(base[0], 0, whole))
            store(shift(pointer(sums), 1 * plane), offset, scale_sums(base[1], 0, whole))
            store(shift(pointer(sums), 2 * plane), offset, total)
            store(shift(pointer(sums), 3 * plane), offset, found)
    keep_alive((scratch, hidden, sums))
    return batch.used


def make(dim: int, first: int) -> tuple[Softmax, SketchHead]:
    softmax = make_softmax(ROWS, dim)
    arrays = sketch_arrays(softmax, rotated(softmax, make_hidden(64, dim)), first)
    return softmax, sketch_head(softmax, arrays)


def one_large(count: int, dim: int) -> Float32:
    """Contexts of which some have one large coordinate, and one is zero."""
    hidden_states = make_hidden(count, dim)
    hidden_states[::3, 5] *= 1e3
    hidden_states[count // 2] = 0.0
    return hidden_states


@pytest.mark.exhaustive  # its kernel compiles for half a minute
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [16, 48, 64, 128])
def test_sums_are_those_of_one_query_after_the_other(first: int, kind: tuple[int, int]) -> None:
    _, head = make(first + 90, first)
    for count in (LEAST, 9, 17, 40):
        hidden_states = one_large(count, first + 90)
        sums = np.zeros((4, count, TILE, LANES), np.float32)
        assert sums_by_both(head._address, hidden_states, *kind, 2 * TILE, sums)
        np.testing.assert_array_equal(sums[0], sums[1])
        np.testing.assert_array_equal(sums[2], sums[3])
        assert len(np.unique(sums)) > 100


@pytest.mark.parametrize("grade", GRADES)
def test_answers_are_those_of_one_query_after_the_other(
    grade: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over so many rows that levels are measured again, with rows that are equal."""
    softmax = make_softmax(LANES * TILE * (MEASURED + 3), 96)
    softmax.weight[5000:5040] = softmax.weight[:40]
    seen = rotated(softmax, make_hidden(64, 96))
    arrays = sketch_arrays(softmax, seen, 16)
    knobs, full = {"max_error": grade}, FullHead(softmax)
    head = SketchHead(softmax, arrays, fallback=full, knobs=knobs)
    monkeypatch.setattr(sketch, "may_use_tiles", lambda: False)
    alone = SketchHead(softmax, arrays, fallback=full, knobs=knobs)
    for count in (LEAST, 7, 16, 33, 70):
        hidden_states = one_large(count, 96)
        hidden_states[1] = softmax.weight[7]
        top, wanted = head.topk(hidden_states, 5), alone.topk(hidden_states, 5)
        np.testing.assert_equal(top[:2], wanted[:2])
        logits = logits64(softmax.weight, softmax.bias, hidden_states)
        np.testing.assert_array_equal(top.ids, best(logits, 5))
