"""Noise on a GPU: the host's bits and float64 numbers, and float32 numbers near them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from logitsieve.gpu.kernels.gumbel import (
    NOISE_ERROR,
    exponential32,
    exponential64,
    leader_of,
    noise32,
    noise64,
    random_words,
)
from logitsieve.gpu.plans import exact
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.sampling.gumbel import noise_of
from logitsieve.kernels.sampling.philox import random_bits
from tests.gpu.draw_plans import STEP, draw_plan, edited_rows, seeds_of
from tests.gpu.softmaxes import sweep, tensor
from tests.kernels.sampling.random123 import KNOWN_ANSWERS
from tests.oracle import gumbel_noise, logits64
from tests.synthetic import make_hidden, make_softmax

COUNT = 64


@triton.jit
def words_kernel(seed, step, draw, first, out, COUNT: tl.constexpr):
    place = tl.arange(0, COUNT)
    words = random_words(tl.load(seed), tl.load(step), draw, first + place)
    for word in tl.static_range(4):
        tl.store(out + place * 4 + word, words[word].to(tl.int32, bitcast=True))


@triton.jit
def noise_kernel(seed, step, draw, wide, narrow, least, place, COUNT: tl.constexpr):
    ids = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    key, now, number = tl.load(seed), tl.load(step), tl.load(draw).to(tl.uint32)
    tl.store(wide + ids, noise64(key, now, number, ids))
    tl.store(narrow + ids, noise32(key, now, number, ids))
    lowest, owner = leader_of(key, now, number, ids // 16)
    tl.store(least + ids, lowest)
    tl.store(place + ids, owner)


@triton.jit
def exponential_kernel(low, high, narrow, wide, COUNT: tl.constexpr):
    place = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    one = tl.load(low + place).to(tl.uint32, bitcast=True)
    other = tl.load(high + place).to(tl.uint32, bitcast=True)
    tl.store(narrow + place, exponential32(one, other))
    tl.store(wide + place, exponential64(one, other))


@kernel("(uint64, uint64, uint64, uint64, uint64[:,::1])")
def fill_bits(seed, step, draw, first, bits):
    for i in range(len(bits)):
        bits[i, 0], bits[i, 1] = random_bits(seed, step, draw, first + np.uint64(i))


@kernel("(uint64, uint64, uint64, float64[::1])")
def fill_noise(seed, step, draw, noise):
    for row in range(noise.size):
        noise[row] = noise_of(seed, step, draw, row)


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
    noise = np.empty(COUNT)
    fill_noise(*key, noise)
    wide, narrow, least, place = noise_numbers(seed, step, draw, COUNT)
    np.testing.assert_allclose(wide, noise, rtol=4e-16, atol=4e-16)
    assert np.abs(narrow - noise).max() <= NOISE_ERROR.value / 4
    blocks = noise.reshape(-1, 16)
    assert place[::16].tolist() == blocks.argmax(axis=1).tolist()
    np.testing.assert_allclose(-np.log(least[::16]), blocks.max(axis=1), rtol=1e-6, atol=1e-6)


def noise_numbers(seed: int, step: int, draw: int, count: int) -> list[np.ndarray]:
    """Of ids below `count`: float64 and float32 noise, their block's least number and its place."""
    out = [tensor(np.zeros(count, dtype)) for dtype in ("float64", "float32", "float32", "int32")]
    number = tensor(np.array([draw], np.int32))
    wide = min(count, 2048)  # in few programs
    grid = (count // wide,)
    noise_kernel[grid](as_int64(seed), as_int64(step), number, *out, COUNT=wide)
    return [each.cpu().numpy() for each in out]


def test_exponentials_in_float32_are_within_their_bound() -> None:
    random = np.random.default_rng(3)
    bits = random.integers(0, 1 << 64, 1 << 16, np.uint64, endpoint=False)
    near = random.integers(0, 1 << 40, 1 << 14, np.uint64) >> random.integers(
        0, 40, 1 << 14
    ).astype(np.uint64)
    half = np.uint64(1 << 63)
    bits = np.concatenate([bits, near, ~near, half + near, half - near, near << np.uint64(12)])
    low, high = (tensor(np.ascontiguousarray(bits.view(np.int32)[i::2])) for i in (0, 1))
    narrow, wide = tensor(np.zeros(bits.size, np.float32)), tensor(np.zeros(bits.size))
    exponential_kernel[(bits.size // 4096,)](low, high, narrow, wide, COUNT=4096)
    exact_ones = -np.log((bits >> np.uint64(12)).astype(np.float64) * 2.0**-52 + 2.0**-53)
    assert exact_ones.max() > 36
    assert exact_ones.min() < 1e-15
    np.testing.assert_allclose(wide.cpu().numpy(), exact_ones, rtol=4e-16)
    np.testing.assert_allclose(narrow.cpu().numpy(), exact_ones, rtol=2.0**-21)


def test_noise_in_float32_is_within_its_bound() -> None:
    wide, narrow, _, _ = noise_numbers(12, 5, 3, 1 << 16)
    assert np.abs(narrow - wide).max() <= NOISE_ERROR.value / 4
    ids = np.arange(1 << 16)
    np.testing.assert_allclose(wide, gumbel_noise(12, 5, 3, ids), rtol=4e-16, atol=4e-16)


@pytest.mark.parametrize("groups", [1 << 14, 16])
def test_maxima_bound_noisy_logits_and_leaders_reach_theirs(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "GROUPS", groups)
    softmax, hidden, draws, scale = make_softmax(333, 17), make_hidden(6, 17), 2, 0.7
    edited = edited_rows(softmax, hidden)
    plan, stored = draw_plan(softmax, hidden, draws, scale, edited)
    plan._scan()
    group, ids = plan.group, np.arange(333)
    assert group == (16 if groups > 16 else 32)
    logits = np.full((6, plan.groups * group), -np.inf)
    logits[:, ids] = logits64(stored.weight, stored.bias, hidden)
    for row, (named, values) in enumerate(edited):
        logits[row, named] = values
    for row, draw in np.ndindex(6, draws):
        noise = gumbel_noise(int(seeds_of(6)[row]), STEP, draw, np.arange(logits.shape[1]))
        noise, each = noise.reshape(-1, 16), (scale * logits[row]).reshape(-1, 16)
        own = noise.argmax(axis=1) == each.argmax(axis=1)
        led = np.where(own, each.max(axis=1), each.min(axis=1))
        for computed, expected in (
            (plan.maxima[row, draw + 1], each.max(axis=1)),
            (plan.leaders[row, draw], led),
        ):
            most = (expected + noise.max(axis=1)).reshape(plan.groups, -1).max(axis=1)
            np.testing.assert_allclose(computed.cpu().numpy(), most, rtol=1e-5, atol=1e-5)
