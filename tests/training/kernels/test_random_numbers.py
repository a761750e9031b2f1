from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from logitsieve.training.kernels.random_numbers import add_uniform_sample
from tests.oracle import chi_square_p


def draw(
    lists: list[list[int]],
    targets: np.ndarray,
    count: int,
    vocab_size: int,
    *,
    seed: int = 1,
    step: int = 0,
) -> tuple[list[list[int]], list[np.ndarray]]:
    offsets = np.cumsum([0, *map(len, lists)])
    ids = np.array([i for ids in lists for i in ids], np.int32)
    starts, out, weights = add_uniform_sample(
        offsets, ids, targets, count, np.uint64(seed), np.uint64(step), vocab_size
    )
    return [part.tolist() for part in np.split(out, starts[1:-1])], np.split(weights, starts[1:-1])


@pytest.mark.parametrize("count", [0, 3, 17, 60, 1000])
def test_rows_keep_their_own_ids_and_get_others(count: int) -> None:
    lists, targets = [[5, 2, 9], [], list(range(40))], np.array([[7, 2], [3, -1], [50, 50]])
    out, weights = draw(lists, targets, count, 64)
    for own, row, ids, weight in zip(lists, targets, out, weights, strict=True):
        held = set(own) | {int(t) for t in row if t >= 0}
        drawn, rest = ids[len(own) :], 64 - len(held)
        assert ids[: len(own)] == own
        assert len(drawn) == len(set(drawn)) == min(count, rest)
        assert not held & set(drawn)
        assert (weight[: len(own)] == 0).all()
        if drawn:
            np.testing.assert_allclose(weight[len(own) :], np.log(rest / len(drawn)), rtol=1e-14)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_every_set_is_equally_likely(count: int) -> None:
    times = Counter[tuple[int, ...]]()
    for step in range(6000):
        (ids,), _ = draw([[0, 4]], np.array([[8]]), count, 9, step=step)
        times[tuple(sorted(ids[2:]))] += 1
    sets = list(combinations([1, 2, 3, 5, 6, 7], count))
    assert set(times) == set(sets)
    assert chi_square_p(np.array(list(times.values())), np.full(len(sets), 1 / len(sets))) > 1e-5


def test_rows_steps_and_seeds_draw_differently() -> None:
    lists, targets = [[1], [2, 3], []], np.array([[0], [0], [0]])
    together, _ = draw(lists, targets, 5, 1000)
    assert draw(lists, targets, 5, 1000)[0] == together
    assert together[1][2:] != together[2]
    assert draw(lists, targets, 5, 1000, step=1)[0] != together
    assert draw(lists, targets, 5, 1000, seed=2)[0] != together
