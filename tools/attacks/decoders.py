"""Decoders over softmaxes whose log Z is hard to come by, and the contexts that make it so.

Shape letters: B batch rows, D hidden size, V vocabulary.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.random import Generator

from logitsieve.api.results import Float32
from logitsieve.decoding import LocalDecoder
from logitsieve.heads import Softmax
from logitsieve.index import HeadEntry, open_index
from tests.oracle import logits64
from tests.synthetic import write_heads
from tools.attacks.matrices import DIMS, contexts_of, sketched, softmax_of
from tools.attacks.topk import around, one_way

Hard = tuple[Softmax, Float32]  # a softmax, contexts [B, D]


@contextmanager
def decoding(softmax: Softmax, random: Generator) -> Iterator[LocalDecoder]:
    """A decoder with the heads `full` and `sketch`, over an index on disk."""
    parts = {"sketch": sketched(softmax, random).arrays}
    with tempfile.TemporaryDirectory() as folder:
        out, heads = Path(folder) / "attacked" / "1", {"full": HeadEntry()}
        heads["sketch"] = HeadEntry("sketch", {"max_error": 0.0})
        path = write_heads(out, softmax, "sketch", parts=parts, heads=heads)
        decoder = LocalDecoder(open_index(path, verify="sizes"))
        yield decoder
        decoder.close()


def flat(random: Generator, B: int) -> Hard:
    """Nearly equal logits, with a log Z of any size, nearly 0 among them."""
    V, D = int(random.integers(2, 1200)), int(random.choice(DIMS))
    W = random.standard_normal((V, D)) * 10.0 ** random.uniform(-6, -1)
    bias = np.full(V, random.choice([0.0, -np.log(V), 17.0, -1000.0]), np.float32)
    softmax = Softmax(W.astype(np.float32), bias)
    return softmax, random.standard_normal((B, D)).astype(np.float32)


def roundings(random: Generator, B: int) -> Hard:
    """Float32 dots that all round the same way; biases by which logits are 0, or none."""
    V, D = int(random.integers(100, 1200)), int(random.choice([64, 200, 512]))
    W, h = one_way(random, V, D)
    bias = np.zeros(V, np.float32)
    if random.random() < 0.7:
        logits = logits64(W, bias, h[None])[0]
        bias = (random.choice([0.0, -np.log(V)]) - logits).astype(np.float32)
    return Softmax(W, bias), around(h, B, random)


def peaked(random: Generator, B: int) -> Hard:
    """One id has nearly all of the mass, or one of two."""
    V, D = int(random.integers(2, 600)), int(random.choice(DIMS))
    W = 10.0 ** random.uniform(0, 2) * random.standard_normal((V, D))
    if V > 3 and random.random() < 0.5:
        W[1] = W[0] * (1 + 2.0 ** -random.integers(8, 24))
    softmax = Softmax(W.astype(np.float32), random.standard_normal(V).astype(np.float32))
    return softmax, (softmax.weight[random.integers(V, size=B)] / 8).astype(np.float32)


def repeated(random: Generator, B: int) -> Hard:
    """The same few rows over and over: their errors add up."""
    V, D, few = int(random.integers(2, 1500)), int(random.choice(DIMS)), int(random.integers(1, 5))
    places = random.integers(few, size=V)
    W = random.standard_normal((few, D))[places] * 10.0 ** random.uniform(-2, 1)
    bias = random.standard_normal(few).astype(np.float32)[places]
    return Softmax(W.astype(np.float32), bias), random.standard_normal((B, D)).astype(np.float32)


def cancelling(random: Generator, B: int) -> Hard:
    """Large products that nearly cancel, against each other or against biases."""
    V, D = int(random.integers(2, 600)), 2 * int(random.choice([4, 16, 50, 100]))
    half = random.standard_normal((V, D // 2)) * 10.0 ** random.uniform(1, 4)
    off = 1e-3 * random.standard_normal((V, D // 2)) / np.abs(half).max()
    W = np.concatenate([half, off - half], axis=1).astype(np.float32)
    h = np.tile(random.standard_normal(D // 2), 2).astype(np.float32)
    bias = np.zeros(V, np.float32)
    if random.random() < 0.5:
        bias = -logits64(W, bias, h[None])[0].astype(np.float32)
    return Softmax(W, bias), around(h, B, random)


def odd(random: Generator, B: int) -> Hard:
    softmax = softmax_of(random, int(random.integers(1, 600)), int(random.choice(DIMS)))
    return softmax, contexts_of(random, softmax, B)


KINDS: dict[str, Callable[[Generator, int], Hard]] = {
    "flat": flat,
    "roundings": roundings,
    "peaked": peaked,
    "repeated": repeated,
    "cancelling": cancelling,
    "odd": odd,
}
