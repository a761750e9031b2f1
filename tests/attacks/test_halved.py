from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

import numpy as np
import pytest

import logitsieve.decoding
import logitsieve.kernels
from logitsieve.index_builder.fit import certified as fit_certified
from logitsieve.kernels.screen.route import encode_centroids
from tests.attacks.halved import CONSTANTS, Constant, lessened, underrated
from tests.attacks.matrices import sketched, softmax_of
from tests.attacks.registry import ATTACKS

STORED = "sketch", "centroids"  # what is stored is changed, no constant
MODULES = [fit_certified] + [
    import_module(each.name)
    for package in (logitsieve.kernels, logitsieve.decoding)
    for each in walk_packages(package.__path__, f"{package.__name__}.")
]


def reads(module: ModuleType, name: str) -> bool:
    """True if a function of a module, compiled or not, takes a constant from its globals."""
    functions = (getattr(each, "_dispatcher", each) for each in vars(module).values())
    codes = (getattr(getattr(each, "py_func", each), "__code__", None) for each in functions)
    return any(name in code.co_names for code in codes if code is not None)


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda each: f"{each.module}.{each.name}")
def test_a_constant_and_its_attacks_exist(constant: Constant) -> None:
    if constant.module not in STORED:
        value = getattr(import_module(f"logitsieve.{constant.module}"), constant.name)
        assert constant.times(1, value) == value
        assert constant.times(0.5, value) != value
        changed = [each for each in MODULES if getattr(each, constant.name, None) is value]
        assert any(reads(each, constant.name) for each in changed)
    assert all(any(name.startswith(each) for name in ATTACKS) for each in constant.attacks)


def test_a_lessened_sketch_is_one_number_less() -> None:
    random = np.random.default_rng(0)
    victim = sketched(softmax_of(random, 40, 100), random)
    for name in ("kappa", "Q", "n", "left"):
        arrays = {key: array.copy() for key, array in victim.arrays.items()}
        less = lessened(lambda arrays=arrays: arrays, name, 0.5)()
        changed = {key for key in arrays if (less[key] != victim.arrays[key]).any()}
        assert changed == ({"coarse", "fine"} if name == "n" else {"limits"})


def test_underrated_codes_differ_in_their_error_alone() -> None:
    centroids = np.random.default_rng(0).standard_normal((20, 33)).astype(np.float32)
    codes, scales, error = encode_centroids(centroids)
    less = underrated(encode_centroids, 0.5)(centroids)
    np.testing.assert_array_equal(less[0], codes)
    np.testing.assert_array_equal(less[1], scales)
    assert less[2] == error / 2
