"""The default chance of an error, 1e-15, over many rows: hours of this attack are 10^8 of them.

Every round draws another rotation, over which the chance is. Float32 finds the rows that it leaves
in doubt, and `best` judges these.

Shape letters: B batch rows, D hidden_states size, V vocabulary.
"""

import numpy as np
from numpy.random import Generator

from logitsieve.api.results import Float32, Int64
from logitsieve.heads import FullHead, SketchHead, Softmax
from tests.synthetic import rotated, sketch_arrays
from tools.attacks.judge import best
from tools.attacks.matrices import biases_of
from tools.attacks.tally import Tally

BATCHES, ROWS = 8, 2048  # of a round
MAX_ERROR = 1e-15


def usual_chance(random: Generator) -> Tally:
    """The best id of contexts from flat to peaked, where nearly every answer may be wrong."""
    D, V = int(random.choice([48, 64, 96, 128])), int(random.integers(1000, 6000))
    lengths = 10.0 ** random.uniform(-0.2, 0.2, (V, 1))
    W = (random.standard_normal((V, D)) * lengths).astype(np.float32)
    softmax = Softmax(W, biases_of(random, W) * np.float32(random.choice([0.0, 0.01])))
    spread = random.standard_normal((256, D)).astype(np.float32)
    first, seed = int(random.choice([16, 32])), int(random.integers(1 << 30))
    arrays = sketch_arrays(softmax, rotated(softmax, spread), first, seed)
    knobs, tally = {"max_error": MAX_ERROR}, Tally()
    head = SketchHead(softmax, arrays, fallback=FullHead(softmax), knobs=knobs)
    for _ in range(BATCHES):
        near = W[random.integers(V, size=ROWS)] * random.uniform(0, 2 / np.sqrt(D), (ROWS, 1))
        hidden_states = (near + random.standard_normal((ROWS, D))).astype(np.float32)
        answer = head.topk(hidden_states, 1)
        if answer.proven.all():
            raise AssertionError("all rows are proven: the chance was not attacked")
        wrong = answer.ids[:, 0] != judged_ids(softmax, hidden_states)
        tally.add(wrong, lambda place: f"V={V} D={D} first={first} row {place}")
    return tally


def judged_ids(softmax: Softmax, hidden_states: Float32) -> Int64:
    """Return the best id of each row [B], in the order of `dot64` where float32 leaves doubt."""
    W, bias = softmax.weight, softmax.bias
    logits = hidden_states @ W.T + bias
    ids: Int64 = logits.argmax(axis=1)
    lengths = np.linalg.norm(hidden_states, axis=1) * np.linalg.norm(W, axis=1).max()
    off = (len(W[0]) + 4) * 2.0**-23 * (lengths + np.abs(bias).max())
    lowest = (logits[np.arange(len(ids)), ids] - 2 * off)[:, None]
    doubtful = np.flatnonzero((logits >= lowest).sum(axis=1) > 1)
    if len(doubtful):
        ids[doubtful] = best(W, bias, hidden_states[doubtful], 1)[0][:, 0]
    return ids


ATTACKS = {"grades-usual-chance": usual_chance}
