"""Noise on a GPU: the host's bits and float64 numbers, and float32 numbers near them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from logitsieve.gpu.kernels.gumbel import NOISE_ERROR, gumbel32, gumbel64, noise64, random_words
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.sampling.gumbel import gumbel, noise_of
from logitsieve.kernels.sampling.philox import random_bits
from tests.gpu.softmaxes import sweep, tensor
from tests.kernels.sampling.random123 import KNOWN_ANSWERS

COUNT = 64


@triton.jit
def words_kernel(seed, step, draw, first, out, COUNT: tl.constexpr):
    place = tl.arange(0, COUNT)
    words = random_words(tl.load(seed), tl.load(step), draw, first + place)
    for word in tl.static_range(4):
        tl.store(out + place * 4 + word, words[word].to(tl.int32, bitcast=True))


@triton.jit
def noise_kernel(seed, step, draw, out, COUNT: tl.constexpr):
    place = tl.arange(0, COUNT)
    tl.store(out + place, noise64(tl.load(seed), tl.load(step), draw, place))


@triton.jit
def gumbel_kernel(low, high, narrow, wide, COUNT: tl.constexpr):
    place = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    one = tl.load(low + place).to(tl.uint32, bitcast=True)
    other = tl.load(high + place).to(tl.uint32, bitcast=True)
    tl.store(narrow + place, gumbel32(one, other))
    tl.store(wide + place, gumbel64(one, other))


@kernel("(uint64, uint64, uint64, uint64, uint64[:,::1])")
def fill_bits(seed, step, draw, first, bits):
    for i in range(len(bits)):
        bits[i, 0], bits[i, 1] = random_bits(seed, step, draw, first + np.uint64(i))


@kernel("(uint64, uint64, uint64, float64[::1])")
def fill_noise(seed, step, draw, noise):
    for row in range(noise.size):
        noise[row] = gumbel(noise_of(seed, step, draw, row))


@kernel("(uint64[::1], float64[::1])")
def fill_gumbel(bits, noise):
    for i in range(bits.size):
        noise[i] = gumbel(bits[i])


def as_int64(value: int) -> torch.Tensor:
    return tensor(np.array([value], np.uint64).view(np.int64))


def words_of(seed: int, step: int, draw: int, first: int) -> np.ndarray:
    out = tensor(np.zeros((COUNT, 4), np.int32))
    draw, first = (int(np.array(word, np.uint32).view(np.int32)) for word in (draw, first))
    words_kernel[(1,)](as_int64(seed), as_int64(step), draw, first, out, COUNT=COUNT)
    return out.cpu().numpy().view(np.uint32)


@pytest.mark.parametrize(("counter_and_key", "answer"), KNOWN_ANSWERS)
def test_known_answers_of_philox4x32_10(counter_and_key: str, answer: str) -> None:
    words = [int(word, 16) for word in counter_and_key.split()]
    place, draw, low, high, key_low, key_high = words
    found = words_of(key_low | key_high << 32, low | high << 32, draw, place)[0]
    assert " ".join(f"{word:08x}" for word in found) == answer


@pytest.mark.parametrize("seed", sweep(7, (1 << 64) - 1, more=[0, 1 << 63]))
@pytest.mark.parametrize(("step", "draw"), [(0, 0), (3 << 33 | 5, 15)])
def test_bits_and_noise_are_the_hosts(seed: int, step: int, draw: int) -> None:
    bits = np.empty((COUNT, 2), np.uint64)
    key = np.uint64(seed), np.uint64(step), np.uint64(draw)
    fill_bits(*key, np.uint64(100), bits)
    np.testing.assert_array_equal(words_of(seed, step, draw, 100), bits.view(np.uint32))
    noise, out = np.empty(COUNT), tensor(np.zeros(COUNT))
    fill_noise(*key, noise)
    noise_kernel[(1,)](as_int64(seed), as_int64(step), draw, out, COUNT=COUNT)
    np.testing.assert_allclose(out.cpu().numpy(), noise, rtol=4e-16, atol=4e-16)


def test_noise_in_float32_is_within_its_bound() -> None:
    random = np.random.default_rng(3)
    bits = random.integers(0, 1 << 64, 1 << 16, np.uint64, endpoint=False)
    near = random.integers(0, 1 << 40, 1 << 14, np.uint64) >> random.integers(
        0, 40, 1 << 14
    ).astype(np.uint64)
    half = np.uint64(1 << 63)
    bits = np.concatenate([bits, near, ~near, half + near, half - near, near << np.uint64(12)])
    low, high = (tensor(np.ascontiguousarray(bits.view(np.int32)[i::2])) for i in (0, 1))
    narrow, wide = tensor(np.zeros(bits.size, np.float32)), tensor(np.zeros(bits.size))
    gumbel_kernel[(bits.size // 4096,)](low, high, narrow, wide, COUNT=4096)
    noise = np.empty(bits.size)
    fill_gumbel(bits, noise)
    assert noise.max() > 36
    assert noise.min() < -3.5
    np.testing.assert_allclose(wide.cpu().numpy(), noise, rtol=4e-16, atol=4e-16)
    assert np.abs(narrow.cpu().numpy() - noise).max() <= NOISE_ERROR.value / 4
