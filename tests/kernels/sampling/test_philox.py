import numpy as np
import pytest

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.sampling.philox import bits_of, random_bits, rest_lanes, uniform
from logitsieve.kernels.simd.lanes import store
from logitsieve.kernels.simd.pointers import pointer

KNOWN_ANSWERS = [  # kat_vectors of Random123, the library of Philox's authors
    ("0 0 0 0 0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (6 * " ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@kernel("(uint64, uint64, uint64, uint64[::1], uint64[:,::1])")
def fill_bits(seed, step, draw, places, bits):
    for i in range(places.size):
        bits[i, 0], bits[i, 1] = random_bits(seed, step, draw, places[i])


@kernel("(uint64[::1], float64[::1])")
def fill_uniforms(bits, values):
    for i in range(bits.size):
        values[i] = uniform(bits[i])


def words_of(seed: int, step: int, draw: int, place: int) -> str:
    bits = np.empty((1, 2), np.uint64)
    seed, step, draw = np.uint64(seed), np.uint64(step), np.uint64(draw)
    fill_bits(seed, step, draw, np.array([place], np.uint64), bits)
    return " ".join(f"{word:08x}" for word in bits.view("<u4")[0])


@pytest.mark.parametrize(("counter_and_key", "answer"), KNOWN_ANSWERS)
def test_known_answers_of_philox4x32_10(counter_and_key: str, answer: str) -> None:
    words = [int(word, 16) for word in counter_and_key.split()]
    place, draw, low, high, key_low, key_high = words
    assert words_of(key_low | key_high << 32, low | high << 32, draw, place) == answer


def test_uniforms_are_never_0_nor_1_and_rise_with_the_bits() -> None:
    bits = np.array([0, 1 << 12, 1 << 63, (1 << 64) - 1], np.uint64)
    values = np.empty(4)
    fill_uniforms(bits, values)
    assert values.tolist() == [2.0**-53, 3 * 2.0**-53, 0.5 + 2.0**-53, 1 - 2.0**-53]


@kernel("(uint64, uint64, uint64, int64, float32[::1], float64[::1])")
def fill_lanes(seed, step, draw, first, rest, uniforms):
    store(pointer(rest), 0, rest_lanes(seed, step, draw, first))
    for i in range(16):
        uniforms[i] = uniform(bits_of(seed, step, draw, first + i))


@pytest.mark.parametrize("first", [0, 16, 250_000 * 16, (1 << 31) - 16])
@pytest.mark.parametrize("seed", [0, 1, (1 << 64) - 1, 0x1234_5678_9ABC_DEF0])
def test_lanes_are_at_most_what_is_left_of_one(first: int, seed: int) -> None:
    rest, uniforms = np.empty(16, np.float32), np.empty(16)
    for step, draw in ((0, 0), (1 << 40, 3), ((1 << 64) - 1, (1 << 20) - 1)):
        fill_lanes(np.uint64(seed), np.uint64(step), np.uint64(draw), first, rest, uniforms)
        left = 1 - uniforms
        assert ((rest >= 0) & (rest <= left * (1 + 2.0**-24))).all()
        assert (rest >= left * (1 - 2.0**-24) - 2.0**-31).all()
