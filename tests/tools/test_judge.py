"""The judges judged: by each other, and by answers that are wrong in their last bit."""

import numpy as np
import pytest

from tests.oracle import best as all_best
from tests.oracle import logits64
from tests.synthetic import make_hidden, make_softmax
from tools.attacks.judge import (
    LONG,
    best,
    decimal_log_prob,
    decimal_log_z,
    log_probs,
    log_z,
    rounded_down,
)
from tools.attacks.tally import Tally, attack_once, require_none_wrong


def test_the_best_are_those_of_the_oracle_and_ties_go_by_id() -> None:
    softmax, hidden_states = make_softmax(90, 37), make_hidden(5, 37)
    logits = logits64(softmax.weight, softmax.bias, hidden_states)
    ids, values = best(softmax.weight, softmax.bias, hidden_states, 7)
    np.testing.assert_array_equal(ids, all_best(logits, 7))
    np.testing.assert_array_equal(values, np.take_along_axis(logits, ids, axis=1))
    weight, hidden_states = np.ones((40, 3), np.float32), np.ones((2, 3), np.float32)
    ids, _ = best(weight, np.zeros(40, np.float32), hidden_states, 4)
    np.testing.assert_array_equal(ids, [[0, 1, 2, 3]] * 2)


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("size", [0.01, 1.0, 40.0])
def test_long_doubles_agree_with_decimals(size: float, scale: float) -> None:
    logits = size * np.random.default_rng(1).standard_normal((3, 200))
    logits[:, 7] = -np.inf
    found = log_z(logits, scale)
    truth = log_probs(logits, found, scale)
    for row in range(3):
        top, rest = decimal_log_z(logits[row], scale)
        for target in (0, 50):
            log_p = decimal_log_prob(logits[row], target, scale)
            off = abs(LONG(str(log_p)) - truth[row, target])
            assert off <= abs(truth[row, target]) * LONG(2) ** -58
        assert abs(LONG(str(top + rest)) - found.value(scale)[row]) <= 1e-17 * max(1, size)


def test_a_number_rounded_down_is_the_nearest_or_the_one_before() -> None:
    step = np.float32(2.0**-23)
    truth = np.full(5, LONG(-1) - LONG(step) / 4)  # the nearest is -1, above it
    printed = np.float32(-1) + step * np.array([1, 0, -1, -2, -3], np.float32)
    good, near = rounded_down(truth, printed)
    np.testing.assert_array_equal(good, [False, False, True, False, False])
    assert not near.any()
    good, near = rounded_down(np.full(1, LONG(-1)), np.full(1, np.float32(-1)))
    assert good.all()
    assert near.all()


def test_a_wrong_answer_is_named_with_its_seed() -> None:
    def attack(random: np.random.Generator) -> Tally:
        tally = Tally()
        tally.add(random.random(3) < 2, lambda place: f"row {place}")
        return tally

    assert attack_once(attack, 3).example == "seed 3: row 0"
    with pytest.raises(AssertionError, match="seed 0: row 0"):
        require_none_wrong(attack, 2)
