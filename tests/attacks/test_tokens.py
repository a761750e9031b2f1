from __future__ import annotations

import pytest

from tests.attacks.tally import require_none_wrong
from tests.attacks.tokens import ATTACKS, granted


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_wrong(name: str) -> None:
    require_none_wrong(ATTACKS[name], rounds=10)


def test_the_judge_knows_a_comment_from_a_token() -> None:
    token = b"read:a-token-of-a-reader\n"
    assert granted("# \u00c5 admin:a-token-of-an-admin\n".encode()) is None
    assert list((granted(b"# \x85admin:a-token-of-an-admin\n" + token) or {}).values()) == [False]
