"""Bearer tokens from a file, which is read again when it has changed.

One token a line, `scope:token`; empty lines and those that begin with `#` are left out. Scopes are
`read`, which answers requests, and `admin`, which changes what is served and may do all that
`read` may. Only hashes are kept, and all of them are compared, each in constant time.
"""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from pathlib import Path

from logitsieve.api.errors import InvalidRequest, PermissionDenied, Unauthenticated
from logitsieve.server.security.reloading_file import ReloadingFile

READ, ADMIN = "read", "admin"
SCOPES: dict[str, frozenset[str]] = {READ: frozenset({READ}), ADMIN: frozenset({READ, ADMIN})}

HEADER = "authorization"
# RFC 6750's b64token, long enough not to be guessed.
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,}=*")
LINE = "scope:token, the scope read or admin, the token 16 or more of A-Z a-z 0-9 . _ ~ + / -"

Held = list[tuple[bytes, frozenset[str]]]  # (SHA-256 of a token, what it may do)


class Tokens:
    """The tokens of a file. InvalidRequest names `tokens` where it is not good at the start."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = ReloadingFile("tokens", lambda: read_tokens(path), path)
        except OSError as error:
            raise InvalidRequest("tokens", error, "a file of tokens") from error

    def check(self, header: str, scope: str) -> None:
        """Whether "Bearer <token>" may do what `scope` is asked for.

        Unauthenticated if it is none of the tokens, PermissionDenied if it lacks the scope.
        """
        self._file.renew()
        kind, _, token = header.partition(" ")
        digest = sha256(token.strip().encode()).digest()
        matching = [may for held, may in self._file.held if hmac.compare_digest(held, digest)]
        if kind.lower() != "bearer" or not matching:
            raise Unauthenticated(f"{HEADER}: no token of this server", HEADER)
        if not any(scope in may for may in matching):
            raise PermissionDenied(f"{HEADER}: this takes a token of scope {scope}", HEADER)


def read_tokens(path: Path) -> Held:
    """At least one token; InvalidRequest names the line at fault, but not what it holds."""
    held: Held = []
    for number, line in enumerate(path.read_bytes().decode("latin-1").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        scope, _, token = (part.strip() for part in line.partition(":"))
        if scope not in SCOPES or not TOKEN.fullmatch(token):
            raise InvalidRequest("tokens", f"something else at {path}:{number}", LINE)
        held.append((sha256(token.encode()).digest(), SCOPES[scope]))
    if not held:
        raise InvalidRequest("tokens", f"none in {path}", LINE)
    return held
