from __future__ import annotations

from tests.attacks.tokens import granted


def test_the_judge_knows_a_comment_from_a_token() -> None:
    token = b"read:a-token-of-a-reader\n"
    assert granted("# \u00c5 admin:a-token-of-an-admin\n".encode()) is None
    assert list((granted(b"# \x85admin:a-token-of-an-admin\n" + token) or {}).values()) == [
        {"read"}
    ]
