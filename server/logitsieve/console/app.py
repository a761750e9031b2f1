from functools import cache
from http import HTTPStatus
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from logitsieve.api.errors import PermissionDenied, ServiceError
from logitsieve.console.api import ANSWER_S, Api, Desk
from logitsieve.server.http.application import PLAIN, ServerView, http_failure
from logitsieve.server.http.listener import read_body
from logitsieve.server.security import CONSOLE, HEADER, ApiKeys

HERE = Path(__file__).parent
# Protects against hostile words: no other hosts, inline scripts, styles or frames
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
COOKIE = "logitsieve_console"
MOST_FORM = 4 << 10
MOST_SESSIONS = 1000


class ConsoleAccess:
    """Signs in by API keys of scope `console`, and refuses requests of other sites.

    The cookie names a session, not the key, because a host's other ports receive it, too.
    """

    def __init__(self, api_keys: ApiKeys | None, secure: bool) -> None:
        self._api_keys = api_keys
        self._sessions: dict[str, str] = {}
        # Browsers accept this prefix only over TLS and from this host.
        self._cookie = f"__Host-{COOKIE}" if secure else COOKIE
        self._about: Any = {"httponly": True, "samesite": "strict", "secure": secure}

    @property
    def signs_in(self) -> bool:
        return self._api_keys is not None

    def check(self, request: HTTPConnection) -> None:
        headers = request.headers
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        foreign = origin is not None and origin.partition("://")[2] != headers.get("host")
        foreign = foreign or site not in ("same-origin", "none")
        # Other sites may link to pages, but not compute.
        if foreign and request.scope["path"].startswith("/api/"):
            raise PermissionDenied("origin: the page of another site asks", "origin")
        if self._api_keys is not None:
            session = self._sessions.get(request.cookies.get(self._cookie, ""), "Bearer ")
            self._api_keys.check(headers.get(HEADER) or session, CONSOLE)

    def sign_in(self, form: bytes) -> Response | str:
        fields = parse_qs(form.decode("latin-1"))
        key = fields.get("key", [""])[0].strip()
        try:
            if self._api_keys is not None:
                self._api_keys.check(f"Bearer {key}", CONSOLE)
        except ServiceError as error:
            return "lacks the scope console" if isinstance(error, PermissionDenied) else "unknown"
        if len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = token_urlsafe(32)
        self._sessions[session] = f"Bearer {key}"
        reply = RedirectResponse("/", 303)
        reply.set_cookie(self._cookie, session, **self._about)
        return reply

    def sign_out(self, request: HTTPConnection) -> Response:
        self._sessions.pop(request.cookies.get(self._cookie, ""), None)
        reply = RedirectResponse("/sign-in", 303)
        reply.delete_cookie(self._cookie, **self._about)
        return reply


class Page(NamedTuple):
    path: str
    name: str
    title: str
    link: str


PAGES = (
    Page("/", "overview", "Overview", "Overview"),
    Page("/playground", "playground", "Playground", "Playground"),
    Page("/why-not", "why-not", "Why not this word?", "Why not?"),
    Page("/points", "points", "Operating points", "Points"),
)

MESSAGES = {404: "Nothing is at this address.", 405: "This address does not take that method."}
OPEN = ("/sign-in", "/static/")


class Pages:
    def __init__(self, view: ServerView, answer_s: float = ANSWER_S) -> None:
        self._access = ConsoleAccess(view.api_keys, view.secure)
        self._desk = Desk(view.routes, view.admit, answer_s)
        self._router = Router(
            routes=[
                *map(self._page, PAGES),
                *Api(self._desk, view).routes(),
                Route("/sign-in", self._sign_in, methods=["GET", "POST"]),
                Route("/sign-out", self._sign_out, methods=["POST"]),
                Mount("/static", StaticFiles(directory=HERE / "static")),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The path of `request.url` can be forged by a Host header such as "x/static/?".
        request, path = Request(scope, receive), scope["path"]
        caching = "no-cache" if path.startswith("/static/") else "no-store"

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS | {"Cache-Control": caching})
            await send(message)

        try:
            if path in PLAIN:  # reached only by a method that they do not have
                raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
            if not (self._access.signs_in and path.startswith(OPEN)):
                self._access.check(request)
            await self._router(scope, receive, send_with_headers)
        except ClientDisconnect:
            return
        except Exception as error:
            reply = _failure(request, error, self._access.signs_in)
            await reply(scope, receive, send_with_headers)

    def close(self) -> None:
        self._desk.close()

    def _page(self, page: Page) -> Route:
        text = render(page.name, signs_in=self._access.signs_in, title=page.title)

        async def shown(request: Request) -> Response:
            return HTMLResponse(text)

        return Route(page.path, shown)

    async def _sign_in(self, request: Request) -> Response:
        complaint = ""
        if request.method == "POST":
            reply = self._access.sign_in(await read_body(request, MOST_FORM))
            if isinstance(reply, Response):
                return reply
            complaint = reply
        elif not self._access.signs_in:
            return RedirectResponse("/", HTTPStatus.SEE_OTHER)
        text = render("sign-in", signs_in=False, title="Sign in", complaint=complaint)
        return HTMLResponse(text, HTTPStatus.FORBIDDEN if complaint else HTTPStatus.OK)

    async def _sign_out(self, request: Request) -> Response:
        return self._access.sign_out(request)


def _failure(request: Request, error: Exception, signs_in: bool) -> Response:
    field, headers = "", {}
    if isinstance(error, HTTPException):
        status = HTTPStatus(error.status_code)
        message = MESSAGES.get(status, error.detail)
        headers = dict(error.headers or {})
    else:
        status, message, field, headers = http_failure(error)
    if request.scope["path"].startswith("/api/"):
        body = {"error": {"status": status.value, "field": field, "message": message}}
        return JSONResponse(body, status, headers)
    if signs_in and isinstance(error, ServiceError) and status in (401, 403):
        return RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
    text = render("failure", signs_in=signs_in, title=status.phrase, message=message)
    return HTMLResponse(text, status, headers)


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(HERE / "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def render(name: str, *, signs_in: bool, title: str, **values: object) -> str:
    template = _templates().get_template(f"{name}.html")
    return template.render(name=name, title=title, signs_in=signs_in, pages=PAGES, **values)
