"""The guard of the console: tokens of scope `console` in a cookie, and names of this machine.

No other site's pages send the cookie (SameSite=Strict), and no script reads it. Without tokens, a
console on loopback answers only to names of loopback, so no other site reaches it by a name that
resolves there.
"""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response

from logitsieve.api.errors import PermissionDenied, ServiceError
from logitsieve.server.security.secrets import CONSOLE, HEADER, Tokens
from logitsieve.utils.environment import is_loopback

COOKIE = "logitsieve_console"
MOST_FORM = 4 << 10  # bytes of the sign-in form


class ConsoleAccess:
    """`tokens` None: no sign-in. `secure`: the port speaks TLS."""

    def __init__(self, tokens: Tokens | None, secure: bool) -> None:
        self._tokens, self._secure = tokens, secure

    @property
    def signs_in(self) -> bool:
        return self._tokens is not None

    def check(self, request: HTTPConnection) -> None:
        """Unauthenticated or PermissionDenied unless the request may see the console."""
        if self._tokens is None:
            host = request.headers.get("host", "")
            if not is_loopback(_without_port(host)):
                raise PermissionDenied(f"host: {host[:100]!r} is not a name of loopback", "host")
            return
        header = request.headers.get(HEADER) or f"Bearer {request.cookies.get(COOKIE, '')}"
        self._tokens.check(header, CONSOLE)

    def sign_in(self, form: bytes) -> Response | str:
        """Answer a form with a token: a redirect with a cookie, or the complaint."""
        fields = parse_qs(form.decode("latin-1"))
        token = fields.get("token", [""])[0].strip()
        try:
            if self._tokens is not None:
                self._tokens.check(f"Bearer {token}", CONSOLE)
        except ServiceError as error:
            return "lacks the scope console" if isinstance(error, PermissionDenied) else "unknown"
        reply = RedirectResponse("/", 303)
        reply.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=self._secure)
        return reply

    def sign_out(self) -> Response:
        reply = RedirectResponse("/sign-in", 303)
        reply.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=self._secure)
        return reply


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
