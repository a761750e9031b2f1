"""A few rounds of every attack, fewer in `make test`; `python -m tools.attacks` never ends."""

import pytest

from tools.attacks.api_keys import granted
from tools.attacks.registry import ATTACKS
from tools.attacks.tally import require_none_wrong

# Of an attack whose name begins so.
ROUNDS = {
    "topk": 12, "routes": 12, "bounds": 6, "log-z": 2, "score": 3, "beams": 4, "draws": 2,
    "shards": 6, "sketches": 6, "grades": 1, "builds": 4, "api-keys": 10,
}  # fmt: skip


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_wrong(name: str, share: int) -> None:
    (rounds,) = (count for kind, count in ROUNDS.items() if name.startswith(f"{kind}-"))
    require_none_wrong(ATTACKS[name], -(-rounds // share))


def test_the_judge_knows_a_comment_from_a_key() -> None:
    key = b"read:a-token-of-a-reader\n"
    assert granted("# \u00c5 admin:a-token-of-an-admin\n".encode()) is None
    found = granted(b"# \x85admin:a-token-of-an-admin\n" + key)
    assert [*(found or {}).values()] == [{"read"}]
