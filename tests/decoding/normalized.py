"""log Z of one small index by every normalizer, and its true value in float64."""

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.decoding import NORMALIZERS, LocalDecoder
from logitsieve.decoding.logit_edits import edits_of
from logitsieve.decoding.normalizers import LogZ32, Query
from tests.decoding.drawn import edited_logits
from tests.oracle import best, log_sum_exp, logits64
from tests.synthetic import make_hidden, make_softmax

SOFTMAX = make_softmax()  # what `write_whole` writes: V = 300, D = 24
SIZE = SOFTMAX.vocab_size
HIDDEN = make_hidden(4, scale=0.4)
ORDER = best(logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN), SIZE)
CONSTRAINTS: dict[str, Constraints | None] = {
    "none": None,
    "best banned": Constraints(banned=[row[:5].tolist() for row in ORDER]),
    "worst biased up": Constraints(
        biased=[row[-3:].tolist() for row in ORDER], bias=[[8.0] * 3] * 4
    ),
    "nearly all changed": Constraints(
        banned=[[1]] * 4, biased=[[*range(290)]] * 4, bias=[[-2.5] * 290] * 4
    ),
    "few allowed": Constraints(allowed=[row[::60].tolist() for row in ORDER]),
    "many allowed": Constraints(allowed=[row[::20].tolist() + row[40:].tolist() for row in ORDER]),
    "some allow few": Constraints(
        allowed=[[3, 4], [*range(SIZE)], [7], [*range(1, SIZE)]], banned=[[0, 2]] * 4
    ),
    "one left": Constraints(banned=[np.delete(row, 150).tolist() for row in ORDER]),
    "penalised": Constraints(repeated=[row[:40].tolist() for row in ORDER], repetition_penalty=1.7),
}
SCALES = [1e-4, 0.5, 1.0, 2.0, 100.0, 1e5]


def normalized(
    decoder: LocalDecoder,
    name: str,
    *,
    constraints: Constraints | None = None,
    head: str = "screen",
    scale: float = 1.0,
    k: int = 5,
    hidden_states: np.ndarray = HIDDEN,
) -> LogZ32:
    index, edits = decoder.index, None
    if constraints is not None:
        edits = edits_of(index.softmax, constraints, hidden_states)
    query = Query(index, index.head(head), hidden_states, edits, k, scale)
    return NORMALIZERS[name].log_z(query).rounded()


def logits_of(constraints: Constraints | None) -> np.ndarray:
    """[B, V] by brute force."""
    if constraints is None:
        return logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
    return edited_logits(SOFTMAX, HIDDEN, constraints)


def truth(constraints: Constraints | None, scale: float = 1.0) -> np.ndarray:
    return np.array([log_sum_exp(row * scale) for row in logits_of(constraints)])
