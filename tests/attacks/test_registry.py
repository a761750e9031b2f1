"""A few rounds of every attack; `python -m tests.attacks` goes on for as long as you like."""

from __future__ import annotations

import pytest

from tests.attacks.registry import ATTACKS
from tests.attacks.tally import require_none_wrong

# Of an attack whose name begins so.
ROUNDS = {
    "topk": 6, "routes": 8, "bounds": 3, "log-z": 2, "score": 3, "beams": 4, "draws": 2,
    "shards": 6,
    "sketches": 6, "builds": 4, "tokens": 10,
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_wrong(name: str) -> None:
    (rounds,) = (count for kind, count in ROUNDS.items() if name.startswith(f"{kind}-"))
    require_none_wrong(ATTACKS[name], rounds)
