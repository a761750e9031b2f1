"""The guard of the console: sign-ins by a token of scope `console`, and the asking site.

The cookie names a session, not the token: other ports get it too.
"""

from secrets import token_urlsafe
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response

from logitsieve.api.errors import PermissionDenied, ServiceError
from logitsieve.server.security import CONSOLE, HEADER, Tokens

COOKIE = "logitsieve_console"
MOST_FORM = 4 << 10  # bytes
MOST_SESSIONS = 1000  # then the oldest ends


class ConsoleAccess:
    """`tokens` None: no sign-in. `secure`: the port speaks TLS."""

    def __init__(self, tokens: Tokens | None, secure: bool) -> None:
        self._tokens = tokens
        self._sessions: dict[str, str] = {}  # the header of each, the oldest first
        # Browsers take this prefix only over TLS, from this host.
        self._cookie = f"__Host-{COOKIE}" if secure else COOKIE
        self._about: Any = {"httponly": True, "samesite": "strict", "secure": secure}

    @property
    def signs_in(self) -> bool:
        return self._tokens is not None

    def check(self, request: HTTPConnection) -> None:
        """Raise Unauthenticated or PermissionDenied."""
        headers = request.headers
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        foreign = origin is not None and origin.partition("://")[2] != headers.get("host")
        foreign = foreign or site not in ("same-origin", "none")
        # Other sites may link to pages, not compute.
        if foreign and request.scope["path"].startswith("/api/"):
            raise PermissionDenied("origin: the page of another site asks", "origin")
        if self._tokens is not None:
            session = self._sessions.get(request.cookies.get(self._cookie, ""), "Bearer ")
            self._tokens.check(headers.get(HEADER) or session, CONSOLE)

    def sign_in(self, form: bytes) -> Response | str:
        """Answer a form: a redirect with a cookie, or the complaint."""
        fields = parse_qs(form.decode("latin-1"))
        token = fields.get("token", [""])[0].strip()
        try:
            if self._tokens is not None:
                self._tokens.check(f"Bearer {token}", CONSOLE)
        except ServiceError as error:
            return "lacks the scope console" if isinstance(error, PermissionDenied) else "unknown"
        if len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = token_urlsafe(32)
        self._sessions[session] = f"Bearer {token}"
        reply = RedirectResponse("/", 303)
        reply.set_cookie(self._cookie, session, **self._about)
        return reply

    def sign_out(self, request: HTTPConnection) -> Response:
        self._sessions.pop(request.cookies.get(self._cookie, ""), None)
        reply = RedirectResponse("/sign-in", 303)
        reply.delete_cookie(self._cookie, **self._about)
        return reply
