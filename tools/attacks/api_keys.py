"""Attacks on a file of API keys: comments, line ends and bytes, judged by a few lines of bytes."""

import re
import tempfile
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.random import Generator

from logitsieve.api.errors import InvalidRequest
from logitsieve.server.security import SCOPES, read_api_keys
from tools.attacks.tally import Tally

FILES, LINES = 50, 8
KEYS = (b"a-token-of-a-reader", b"the-other-tok3n==", b"Z" * 16, b"too-short")
# Ends of lines for somebody, and letters whose UTF-8 contains such bytes.
BREAKS = (b"\r", b"\v", b"\f", b"\x1c", b"\x1d", b"\x1e", b"\x85", b"\xc2\x85", b"\xe2\x80\xa8")
LETTERS = ("Å".encode(), "\u0445".encode(), "ą".encode(), b"\xa0", b"\x00", b"\xef\xbb\xbf", b"#")
SPACES = (b"", b" ", b"\t", b"\r")
GOOD = re.compile(rb"\s*(read|console|admin)\s*:\s*([A-Za-z0-9._~+/-]{16,}=*)\s*", re.ASCII)


def hostile(random: Generator) -> Tally:
    """Files of lines with keys, and of comments with keys and anything that may end a line."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "api_keys"
        for _ in range(FILES):
            content = b"".join(_line(random) for _ in range(random.integers(1, LINES)))
            file.write_bytes(content)
            wrong = _read(file) != granted(content)
            tally.add(np.array([wrong]), lambda _, content=content: repr(content))  # type: ignore[misc]
    return tally


def granted(content: bytes) -> dict[bytes, set[str]] | None:
    """Return the scopes of each key of a file, by its hash; None if the file must be refused."""
    found: dict[bytes, set[str]] = {}
    for line in content.split(b"\n"):
        if line[:1] == b"#" or not line.strip():
            continue
        if (good := GOOD.fullmatch(line)) is None:
            return None
        scope = good[1].decode()
        scopes = {"read", "console", "admin"} if scope == "admin" else {scope}
        found.setdefault(sha256(good[2]).digest(), set()).update(scopes)
    return found or None


def _read(file: Path) -> dict[bytes, set[str]] | None:
    found: dict[bytes, set[str]] = {}
    try:
        for digest, scopes in read_api_keys(file):
            found.setdefault(digest, set()).update(scopes)
    except InvalidRequest:
        return None
    return found


def _line(random: Generator) -> bytes:
    def one(choices: tuple[bytes, ...]) -> bytes:
        return choices[random.integers(len(choices))]

    pair = one((*SCOPES, b"write")) + b":" + one(KEYS)
    match random.integers(5):
        case 0:
            return b"# " + one(LETTERS) + one(BREAKS) + pair + one(SPACES) + b"\n"
        case 1:
            return b"#" + one(LETTERS) + pair + b"\n"
        case 2:
            return one(SPACES) + pair + one(SPACES) + b"\n"
        case 3:
            return one(BREAKS) * int(random.integers(2)) + pair + b"\n"
    return one(SPACES) + b"\n"


ATTACKS = {"api-keys-hostile": hostile}
