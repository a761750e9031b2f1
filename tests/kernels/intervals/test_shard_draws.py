"""Draws by bounds of shards that are asked side by side."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from logitsieve.heads._base.draw_options import DrawOptions
from logitsieve.heads.exact import ExactHead
from logitsieve.heads.sharded.shard import Leading, Noise
from logitsieve.kernels.topk.merge import TOP, VALUE
from tests.sharded import SHARDS, D, V, edits_of, head_of, shards_of, shut
from tests.synthetic import make_hidden

ROWS, DRAWS = 9, 6
HIDDEN = make_hidden(ROWS, D)
SEEDS = np.arange(ROWS, dtype=np.uint64)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("guess", [-50.0, 0.0, 50.0])
def test_the_largest_of_shards_that_know_nothing_of_each_other_wins(
    shards: int, tied: bool, guess: float
) -> None:
    whole, edits = cast(ExactHead, head_of("exact", tied)), edits_of(4, ROWS)
    fields = whole.log_z(HIDDEN, 1.0, edits)
    noise = Noise(SEEDS, 3, 1.0, fields[:, TOP].copy(), fields[:, VALUE] + guess)
    nobody = Leading.nobody(ROWS, DRAWS)
    parts = [
        shard.bounded_race(HIDDEN, edits, noise, nobody) for shard in shards_of(shards, tied).shards
    ]
    assert all(found.all() for _, _, found in parts)
    reached = np.stack([part.reached for part, _, _ in parts])
    best = reached.argmax(axis=0)  # of equal ones the first, whose ids are lower
    ids = np.take_along_axis(np.stack([part.ids for part, _, _ in parts]), best[None], axis=0)[0]
    np.testing.assert_array_equal(
        ids, whole.draw(HIDDEN, DrawOptions(DRAWS, SEEDS, 3, 1.0, edits))[0]
    )


def test_a_shard_far_below_the_largest_logit_wins_nothing_and_ends() -> None:
    shard, edits = shards_of(2, False).shards[1], edits_of(4, ROWS)
    noise = Noise(SEEDS, 3, 1.0, np.full(ROWS, 5000.0), np.full(ROWS, 20.0))
    nobody = Leading.nobody(ROWS, DRAWS)
    after, _, found = shard.bounded_race(HIDDEN, edits, noise, nobody)
    assert found.all()
    np.testing.assert_array_equal(after.reached, nobody.reached)


def test_a_shard_of_which_nothing_is_left_wins_nothing() -> None:
    shard = shards_of(2, False).shards[1]
    noise = Noise(SEEDS, 3, 1.0, np.full(ROWS, 9.0), np.zeros(ROWS))
    edits = shut(shard.first, V, ROWS)
    after, _, found = shard.bounded_race(HIDDEN, edits, noise, Leading.nobody(ROWS, 2))
    assert found.all()
    assert (after.reached == -np.inf).all()


def test_a_shard_computes_no_more_for_the_largest_logit_of_another() -> None:
    shard, edits = shards_of(2, False).shards[1], edits_of(4, ROWS)
    own = shard.best("exact", HIDDEN, 1).logits[:, 0]
    nobody, scanned = Leading.nobody(ROWS, 1), []
    for top in (own, own + 100.0):
        noise = Noise(SEEDS, 3, 1.0, top, np.full(ROWS, 5.0))
        scanned.append(shard.bounded_race(HIDDEN, edits, noise, nobody)[1])
    assert (scanned[1] <= scanned[0]).all()
    assert scanned[1].max() <= 1  # the likeliest
