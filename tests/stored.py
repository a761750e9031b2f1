"""Matrices in every way to store them, and their values by gguf's reference dequantisation."""

import gguf
import numpy as np

from logitsieve.heads import Softmax
from logitsieve.utils.floats import CODES, narrowed, widened
from logitsieve.utils.stored import KINDS, StoredMatrix

HALVES = ("F16", "BF16")
BLOCKS = tuple(code for code, kind in KINDS.items() if kind.blocks)
NAMES = {code: name for name, code in CODES.items()}  # of float types


def random_blocks(kind: str, scales: np.ndarray, seed: int = 0) -> StoredMatrix:
    """Rows of random codes; `scales` [V, blocks] are the float16 scales of all, with random signs.

    A block's second scale is that of the block before it.
    """
    random, block = np.random.default_rng(seed), KINDS[kind]
    rows, blocks = scales.shape
    data = random.integers(0, 256, (rows * blocks, block.bytes), np.uint8)
    flat = scales.astype(np.float16).ravel() * random.choice([-1, 1], scales.size)
    for shift, place in enumerate(block.scales):
        data[:, place : place + 2] = (
            np.roll(flat, shift).astype("<f2").view(np.uint8).reshape(-1, 2)
        )
    return StoredMatrix(kind, data.reshape(rows, -1))


def reference(matrix: StoredMatrix) -> np.ndarray:
    """float32 [V, D] as ggml defines them, by the package `gguf`."""
    if matrix.kind not in BLOCKS:
        return widened(matrix.data)
    kind = gguf.GGMLQuantizationType[matrix.kind]
    return np.asarray(gguf.quants.dequantize(matrix.data, kind))


def stored_softmax(kind: str, vocab_size: int = 300, dim: int = 256, seed: int = 0) -> Softmax:
    """Rows whose norms fall with the id, of the size of Gaussian ones, in that kind."""
    random = np.random.default_rng(seed)
    bias = random.standard_normal(vocab_size).astype(np.float32)
    falling = np.linspace(1.5, 0.5, vocab_size)[:, None]
    if kind not in BLOCKS:
        weight = (random.standard_normal((vocab_size, dim)) * falling).astype(np.float32)
        return Softmax(StoredMatrix(kind, narrowed(weight, NAMES[kind])), bias)
    scales = np.repeat(falling, dim // KINDS[kind].values, axis=1)
    spread = reference(random_blocks(kind, scales, seed)).std()
    return Softmax(random_blocks(kind, scales / spread, seed), bias)


def as_floats(softmax: Softmax) -> Softmax:
    """The same values in float32."""
    return Softmax(reference(softmax.matrix), softmax.bias)
