from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

from tests.attacks.halved import CONSTANTS, Constant, lessened
from tests.attacks.matrices import sketched, softmax_of
from tests.attacks.registry import ATTACKS


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda each: f"{each.module}.{each.name}")
def test_a_constant_and_its_attacks_exist(constant: Constant) -> None:
    if constant.module != "sketch":
        value = getattr(import_module(f"logitsieve.{constant.module}"), constant.name)
        assert constant.times(1, value) == value
        assert constant.times(0.5, value) != value
    assert all(any(name.startswith(each) for name in ATTACKS) for each in constant.attacks)


def test_a_lessened_sketch_is_one_number_less() -> None:
    random = np.random.default_rng(0)
    victim = sketched(softmax_of(random, 40, 100), random)
    for name in ("kappa", "Q", "n", "left"):
        arrays = {key: array.copy() for key, array in victim.arrays.items()}
        less = lessened(lambda arrays=arrays: arrays, name, 0.5)()
        changed = {key for key in arrays if (less[key] != victim.arrays[key]).any()}
        assert changed == ({"coarse", "fine"} if name == "n" else {"limits"})
