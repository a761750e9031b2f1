"""Ids by a matcher are those of the masked softmax by brute force in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.constraints import Constraints
from logitsieve.decoding import LocalDecoder
from logitsieve.grammar import next_ids
from logitsieve.index import open_index
from tests.decoding.normalized import SIZE
from tests.grammar.masks import Masks
from tests.oracle import drawn, edited, filtered, logits64
from tests.refusals import refused
from tests.server.running import write_whole
from tests.synthetic import make_hidden, make_softmax

ROWS, SOFTMAX = 12, make_softmax()
HIDDEN = make_hidden(ROWS, scale=0.4)
LOGITS = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
# The share of the vocabulary that each row's matcher allows.
SHARES = [0.004, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0]
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.8, "min_p": 0.02},
    {"top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.0},
)
CONSTRAINTS = {
    "none": None,
    "banned and biased": Constraints(
        banned=[row[:3].tolist() for row in np.argsort(-LOGITS)], biased=[5, 250], bias=[3.0, -2.0]
    ),
    "allowed": Constraints(allowed=[*range(0, SIZE, 2)]),
}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> LocalDecoder:
    path = write_whole(tmp_path_factory.mktemp("models"), "demo")
    return LocalDecoder(open_index(path, kernel_cache=kernel_cache))


def masks(seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [
        sorted(rng.permutation(SIZE)[: max(2, round(share * SIZE))].tolist()) for share in SHARES
    ]


def truth(allowed: list[int], row: int, step: int, options: dict[str, Any], named: str) -> int:
    how = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | options
    more: dict[str, Any] = {}
    if named == "banned and biased":
        more = {"banned": np.argsort(-LOGITS[row])[:3].tolist(), "biased": {5: 3.0, 250: -2.0}}
    if named == "allowed":
        allowed = [one for one in allowed if one % 2 == 0]
    logits = edited(LOGITS[row], allowed=allowed, **more)
    temperature = how.pop("temperature")
    if temperature == 0:
        return int(logits.argmax())
    left = filtered(logits, temperature, **how)
    return drawn(logits, 1, row, step, temperature, left)[0]


@pytest.mark.parametrize("named", CONSTRAINTS)
@pytest.mark.parametrize("options", FILTERS, ids=str)
@pytest.mark.parametrize("head", ["full", "sketch"])
def test_ids_are_those_of_the_masked_softmax(
    decoder: LocalDecoder, head: str, options: dict[str, Any], named: str
) -> None:
    for step in range(4):
        allowed = masks(step)
        if named == "allowed":
            allowed = [[*row, 0, 2] for row in allowed]
        matchers = [Masks([row], SIZE) for row in allowed]
        asked: Any = {"seeds": range(ROWS), "step": step, "head": head, "temperature": 0.9}
        made = next_ids(decoder, HIDDEN, matchers, CONSTRAINTS[named], **(asked | options))
        given = {"temperature": 0.9} | options
        wanted = [truth(allowed[row], row, step, given, named) for row in range(ROWS)]
        assert made.ids.tolist() == wanted
        assert made.proven.all()


def test_a_forced_id_asks_no_head(decoder: LocalDecoder) -> None:
    forced, free = Masks([[9]], SIZE, forced=True), Masks([[9, 12]], SIZE)
    made = next_ids(decoder, HIDDEN[:2], [forced, free], seeds=1, head="full")
    assert made.ids[0] == 9
    assert (made.scanned > 0).tolist() == [False, True]
    assert forced.masks == 0
    without = Constraints(banned=[9])
    with refused("grammar", "row 0"):
        next_ids(decoder, HIDDEN[:1], [forced], without, seeds=1, head="full")


def test_nothing_left_names_the_row(decoder: LocalDecoder) -> None:
    matchers = [Masks([[1, 2]], SIZE), Masks([[5]], SIZE)]
    with refused("grammar", "row 1"):
        next_ids(decoder, HIDDEN[:2], matchers, Constraints(banned=[5]), seeds=1, head="full")
