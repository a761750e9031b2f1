"""One law of draws: the same ids, seed for seed, from proving heads on the host and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logitsieve.api.constraints import Constraints
from logitsieve.decoding import LocalDecoder
from tests.decoding.drawn import edited_logits
from tests.gpu.replies import HIDDEN, SEEDS, Pair, bits, there
from tests.gpu.softmaxes import sweep
from tests.oracle import drawn, filtered, logits64

DRAWS = 5
RULES = Constraints(
    banned=[[3, 17], [5], [], [40]], biased=[[9]] * 4, bias=[[2.0]] * 4,
    repeated=[[1, 2, 3], [], [7], [8]], repetition_penalty=1.3,
)  # fmt: skip
FEW = Constraints(allowed=[[3, 4, 90], [17], [200, 201], [5, 6, 7, 8]])
FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 20, "temperature": 0.7},
    {"top_p": 0.8},
    {"top_p": 0.9, "min_p": 0.02, "temperature": 1.4},
    {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.0},
]


def law(decoder: LocalDecoder, step: int, constraints: Constraints | None, how: Any) -> Any:
    """[B, DRAWS] ids by the definition."""
    softmax, temperature = decoder.index.softmax, how.get("temperature", 1.0)
    logits = logits64(softmax.weight, softmax.bias, HIDDEN)
    if constraints is not None:
        logits = edited_logits(softmax, HIDDEN, constraints)
    top_k = how.get("top_k", 0) if temperature else 1
    temperature = temperature or 1.0
    filters = temperature, top_k, how.get("top_p", 1.0), how.get("min_p", 0.0)
    return [
        drawn(row, DRAWS, int(seed), step, temperature, filtered(row, *filters))
        for row, seed in zip(logits, SEEDS, strict=True)
    ]


@pytest.mark.parametrize("how", FILTERS, ids=str)
@pytest.mark.parametrize(
    ("constraints", "step"), sweep((None, 0), (RULES, 3 << 40), more=[(None, 7), (FEW, 2**64 - 1)])
)
def test_ids_are_the_laws(
    pair: Pair, constraints: Constraints | None, step: int, how: dict[str, Any]
) -> None:
    gpu, host = pair
    expected = law(host, step, constraints, how)
    asked: Any = {**how, "step": step, "constraints": constraints}
    for head in ("exact", "certified"):
        named: Any = {**asked, "head": head}
        for decoder in pair:
            found = decoder.sample(HIDDEN, DRAWS, seeds=SEEDS, **named)
            assert found.ids.tolist() == expected, (decoder is gpu, head)
            assert found.answer.exact.all()
        tensors: Any = gpu.sample(there(), DRAWS, seeds=bits(SEEDS), **named)
        assert tensors.ids.tolist() == expected, head


def test_ids_of_a_row_do_not_depend_on_the_batch_or_on_later_draws(pair: Pair) -> None:
    for how in FILTERS:
        for head in ("exact", "certified"):
            named: Any = {**how, "step": 9, "head": head}
            whole: Any = pair[0].sample(there(), DRAWS, seeds=bits(SEEDS), **named).ids
            some: Any = pair[0].sample(there()[1:3], 2, seeds=bits(SEEDS[1:3]), **named).ids
            np.testing.assert_array_equal(some.cpu(), np.asarray(whole.cpu())[1:3, :2])
