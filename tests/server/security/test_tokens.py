from __future__ import annotations

import logging
from pathlib import Path

import pytest

from logitsieve.api.errors import InvalidRequest, PermissionDenied, Unauthenticated
from logitsieve.server.security.secrets import ADMIN, READ, Tokens, read_tokens

FIRST, SECOND, ROOT = "first-token-of-readers", "second.token~of+readers==", "token-of-the-admin"


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "tokens"
    file.write_text(text)
    file.chmod(mode)
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = f"# who may call\n\nread:{FIRST}\n  read : {SECOND} \nadmin:{ROOT}\n"
    return write(tmp_path, lines)


@pytest.mark.parametrize("token", [FIRST, SECOND, ROOT])
def test_each_token_reads(file: Path, token: str) -> None:
    Tokens(file).check(f"Bearer {token}", READ)
    Tokens(file).check(f"bearer {token}", READ)


def test_the_admins_alone_changes_what_is_served(file: Path) -> None:
    tokens = Tokens(file)
    tokens.check(f"Bearer {ROOT}", ADMIN)
    with pytest.raises(PermissionDenied, match="scope admin"):
        tokens.check(f"Bearer {FIRST}", ADMIN)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        FIRST,
        f"Basic {FIRST}",
        f"Bearer {FIRST[:-1]}",
        f"Bearer {FIRST}x",
        f"Bearer {FIRST} {FIRST}",
        "Bearer \u65e5\u672c",
    ],
)
def test_what_is_no_token(file: Path, header: str) -> None:
    with pytest.raises(Unauthenticated) as caught:
        Tokens(file).check(header, READ)
    assert FIRST not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        FIRST,
        f"write:{FIRST}",
        "read:too-short",
        "read:",
        f"read:{FIRST} and more",
        f"read:{FIRST}\nread\n",
        "read:\u65e5\u672c\u65e5\u672c\u65e5\u672c\u65e5\u672c",
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Tokens(write(tmp_path, text))
    assert caught.value.field == "tokens"
    assert FIRST not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Tokens(tmp_path / "absent")
    assert caught.value.field == "tokens"


def test_no_token_is_kept(file: Path) -> None:
    assert all(FIRST.encode() not in digest for digest, _ in read_tokens(file))


def test_a_changed_file_is_read_again(file: Path) -> None:
    tokens = Tokens(file)
    file.write_text(f"read:{SECOND}\n")
    tokens.check(f"Bearer {SECOND}", READ)
    with pytest.raises(Unauthenticated):
        tokens.check(f"Bearer {FIRST}", READ)


@pytest.mark.parametrize("broken", ["", f"write:{SECOND}\n", None])
def test_a_broken_file_changes_nothing_and_is_logged_once(
    file: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = Tokens(file)
    if broken is None:
        file.unlink()
    else:
        file.write_text(broken)
    for _ in range(3):
        tokens.check(f"Bearer {FIRST}", READ)
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert SECOND not in caplog.text
    write(file.parent, f"read:{SECOND}\n")
    tokens.check(f"Bearer {SECOND}", READ)


@pytest.mark.parametrize(("mode", "said"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_file_that_others_may_read(
    tmp_path: Path, mode: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    Tokens(write(tmp_path, f"read:{FIRST}\n", mode))
    assert ("others may use it" in caplog.text) == said
