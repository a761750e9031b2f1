"""Draws of shards that are asked side by side, and lists of what filters may leave."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from logitsieve.heads._base.draw_options import DrawOptions
from logitsieve.heads.exact import ExactHead
from logitsieve.heads.sharded.shard import Leading, Noise, nothing_carried
from logitsieve.kernels.sampling.shard_gumbel import LEAST_VALUE, filtered_sample
from logitsieve.kernels.topk.merge import TOP, VALUE
from tests.sharded import SHARDS, D, edits_of, head_of, shards_of
from tests.synthetic import make_hidden

ROWS, DRAWS = 9, 6
HIDDEN, EDITS = make_hidden(ROWS, D), edits_of(4, ROWS)
SEEDS = np.arange(ROWS, dtype=np.uint64)


def noise_beside(tops: np.ndarray, guesses: np.ndarray) -> Noise:
    return Noise(SEEDS, 3, 1.0, tops, guesses)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("guess", [-50.0, 0.0, 50.0])
def test_the_largest_of_shards_that_know_nothing_of_each_other_wins(
    shards: int, tied: bool, guess: float
) -> None:
    whole = cast(ExactHead, head_of("exact", tied))
    fields = whole.log_z(HIDDEN, 1.0, EDITS)
    noise = noise_beside(fields[:, TOP].copy(), fields[:, VALUE] + guess)
    nobody, sums = Leading.nobody(ROWS, DRAWS), nothing_carried(ROWS)
    parts = [
        shard.race(HIDDEN, EDITS, noise, nobody, sums)[0]
        for shard in shards_of(shards, tied).shards
    ]
    reached = np.stack([part.reached for part in parts])
    best = reached.argmax(axis=0)  # of equal ones the first, whose ids are lower
    ids = np.take_along_axis(np.stack([part.ids for part in parts]), best[None], axis=0)[0]
    np.testing.assert_array_equal(
        ids, whole.draw(HIDDEN, DrawOptions(DRAWS, SEEDS, 3, 1.0, EDITS))[0]
    )
    assert (reached.max(axis=0) > LEAST_VALUE).all()


def test_who_leads_by_more_keeps_the_lead() -> None:
    shard = shards_of(2, False).shards[1]
    leading = Leading(np.full((ROWS, DRAWS), 7, np.int32), np.full((ROWS, DRAWS), 99.0))
    tops = np.full(ROWS, 50.0)
    after, _, _ = shard.race(
        HIDDEN, EDITS, noise_beside(tops, np.zeros(ROWS)), leading, nothing_carried(ROWS)
    )
    np.testing.assert_array_equal(after.ids, leading.ids)
    np.testing.assert_array_equal(after.reached, leading.reached)


@pytest.mark.parametrize("filters", [(0.8, 0.0), (1.0, 0.1), (0.6, 0.02)])
def test_a_list_of_all_ids_is_filtered_as_the_matrix_is(filters: tuple[float, float]) -> None:
    whole = cast(ExactHead, head_of("exact", True))
    listed = whole.candidates(HIDDEN, 1)
    logits = whole._softmax.logits64(HIDDEN, listed.offsets, listed.ids)
    shard = shards_of(1, True).shards[0]
    noise = noise_beside(logits.reshape(ROWS, -1).max(axis=1), np.zeros(ROWS))
    none = np.zeros(ROWS + 1, np.int64), np.empty(0, np.int32), np.empty(0)
    _, _, sums = shard.race(HIDDEN, none, noise, Leading.nobody(ROWS, 0), nothing_carried(ROWS))
    ids, log_z = np.empty((ROWS, DRAWS), np.int32), np.empty((ROWS, 4))
    rows = logits.size // ROWS
    filtered_sample(
        listed.offsets, listed.ids, logits, 1.0 + sums[:, -1], rows, SEEDS, 3, 1.0, *filters,
        ids, log_z,
    )  # fmt: skip
    top_p, min_p = filters
    wanted = whole.draw(HIDDEN, DrawOptions(DRAWS, SEEDS, 3, 1.0, None, top_p=top_p, min_p=min_p))
    np.testing.assert_array_equal(ids, wanted[0])
    np.testing.assert_array_equal(log_z, wanted[1])
