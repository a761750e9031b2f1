"""Attacks on decoders over shards: what they call proven is what one softmax answers.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers, N draws.
"""

import tempfile
from pathlib import Path

import numpy as np
from numpy.random import Generator

from logitsieve.decoding import LocalDecoder, ShardedDecoder, open_sharded
from logitsieve.index import open_index, split_index
from tests.synthetic import write_heads
from tools.attacks.matrices import DIMS, contexts_of, softmax_of
from tools.attacks.tally import Tally

ROWS, DRAWS = 32, 20


def best_of_shards(random: Generator) -> Tally:
    """Ids of top-k rows that are called proven."""
    with tempfile.TemporaryDirectory() as folder:
        whole, sharded, hidden_states = split_softmax(random, Path(folder))
        k = int(random.integers(1, 40))
        one, other = whole.topk(hidden_states, k), sharded.topk(hidden_states, k)
        return Tally().add((one.ids != other.ids).any(axis=1) & other.answer.proven)


def draws_of_shards(random: Generator) -> Tally:
    """Ids of draws of rows that are called proven, at all temperatures, with and without top-k."""
    with tempfile.TemporaryDirectory() as folder:
        whole, sharded, hidden_states = split_softmax(random, Path(folder))
        temperature = float(random.choice([0.3, 1.0, 2.5]))
        top_k = int(random.choice([0, 0, 1, 20]))
        one, other = (
            decoder.sample(hidden_states, DRAWS, seeds=7, temperature=temperature, top_k=top_k)
            for decoder in (whole, sharded)
        )
        return Tally().add((one.ids != other.ids).any(axis=1) & other.answer.proven)


def split_softmax(
    random: Generator, folder: Path
) -> tuple[LocalDecoder, ShardedDecoder, np.ndarray]:
    """A softmax of any kind in one piece and in shards, and contexts."""
    D, V = int(random.choice(DIMS)), int(random.integers(257, 1500))
    softmax = softmax_of(random, V, D)
    path = write_heads(folder / "lm" / "1", softmax)
    shards = int(random.integers(2, -(-V // 256) + 1))
    split = split_index(path, folder / "split" / "1", shards)
    return LocalDecoder(open_index(path)), open_sharded(split), contexts_of(random, softmax, ROWS)


ATTACKS = {"shards-best": best_of_shards, "shards-draws": draws_of_shards}
