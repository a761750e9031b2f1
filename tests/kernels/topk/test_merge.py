from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.kernels.topk.merge import best_pairs

HALVES = st.integers(-8, 8).map(lambda n: n / 2)  # few values, so that many are equal

TOUCHING = 1e-9  # numbers that are no further apart may be equal


class Group:
    """Drawn hypotheses of one group."""

    def __init__(self, data: st.DataObject) -> None:
        beams, self.most = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))

        def draw(of: st.SearchStrategy[Any]) -> np.ndarray:
            return np.array(data.draw(st.lists(of, min_size=beams, max_size=beams)))

        self.scores = draw(HALVES).astype(np.float64)
        self.divisors = draw(st.sampled_from([0.5, 1.0, 3.0])).astype(np.float64)
        self.counts = draw(st.integers(0, 5)).astype(np.int64)
        self.logits = -np.sort(-np.stack([draw(HALVES) for _ in range(5)], axis=1), axis=1)
        self.low = draw(HALVES).astype(np.float64)
        self.width = draw(st.sampled_from([0.0, 0.0, 0.5, 2.0, np.inf])).astype(np.float64)

    def merged(
        self, log_z: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> tuple[list[tuple[int, int]], bool]:
        parents, places = np.empty((1, self.most), np.int32), np.empty((1, self.most), np.int32)
        top = np.full(len(low), 0.5)
        doubtful = np.empty(1, np.bool_)
        bounds = np.stack([top, log_z - top, low - top, high - top], axis=1)
        best_pairs(
            self.scores, self.divisors, np.arange(len(low)), self.logits, self.counts, bounds,
            parents, places, doubtful,
        )  # fmt: skip
        return list(zip(parents[0].tolist(), places[0].tolist(), strict=True)), bool(doubtful[0])

    def sorted(self, log_z: np.ndarray) -> list[tuple[int, int]]:
        ranked = [
            (-((self.scores[r] + (self.logits[r, i] - log_z[r])) / self.divisors[r]), r, i)
            for r in range(len(self.scores))
            for i in range(self.counts[r])
        ]
        chosen = [(r, i) for _, r, i in sorted(ranked)[: self.most]]
        return chosen + [(-1, 0)] * (self.most - len(chosen))


@given(data=st.data())
def test_pairs_come_best_first_and_in_doubt_if_another_log_z_changes_them(data: Any) -> None:
    group = Group(data)
    high = group.low + group.width
    middle = group.low + np.where(np.isfinite(group.width), group.width / 2, 1.0)
    pairs, doubtful = group.merged(middle, group.low, high)
    assert pairs == group.sorted(middle)
    if not doubtful:
        for _ in range(5):
            shares = data.draw(st.lists(st.floats(0, 1), min_size=4, max_size=4))
            width = np.where(np.isfinite(group.width), group.width, 100.0)
            within = np.minimum(group.low + width * shares[: len(width)], high)
            assert group.sorted(within) == pairs
    assert doubtful == _undecided(group, group.low - TOUCHING, high + TOUCHING)


def _undecided(group: Group, low: np.ndarray, high: np.ndarray) -> bool:
    """True where a pair of two parents that the merge has to compare can go either way."""
    extremes = np.where(np.isfinite(low), low, -1e9), np.where(np.isfinite(high), high, 1e9)
    found = set()
    for choice in np.ndindex(*(2,) * len(low)):
        log_z = np.array([extremes[which][beam] for beam, which in enumerate(choice)])
        found.add(tuple(group.sorted(log_z)))
    return len(found) > 1


@pytest.mark.parametrize(
    ("scores", "parents", "doubt"),
    [
        ((1.0, 2.0, 1.0), [1, 0, 2], False),  # equal ones are ordered by the parent
        ((1.0, 1.0 + 2.0**-52, 1.0), None, True),  # apart by less than sums are rounded by
    ],
)
def test_rows_with_the_same_log_z_need_none(
    scores: tuple[float, ...], parents: list[int] | None, doubt: bool
) -> None:
    found, places = np.empty((1, 3), np.int32), np.empty((1, 3), np.int32)
    doubtful, counts, logits = np.empty(1, np.bool_), np.ones(3, np.int64), np.full((3, 1), 2.0**20)
    log_z = np.array([[0.0, 9.0, -np.inf, np.inf]] * 3)
    for alike, unknown in ((np.zeros(3, np.int64), doubt), (np.arange(3), True)):
        asked = np.array(scores), np.ones(3), alike, logits, counts, log_z
        best_pairs(*asked, found, places, doubtful)
        assert doubtful.tolist() == [unknown]
    if parents is not None:
        assert found[0].tolist() == parents
