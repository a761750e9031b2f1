"""The endpoints /api/..., documented in docs/console.md."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from logitsieve.api.errors import DeadlineExceeded, InvalidRequest, Overloaded, Unavailable
from logitsieve.console import answers
from logitsieve.console.answers import Question, read_context
from logitsieve.console.overview import (
    chosen_facts,
    overview_facts,
    points_facts,
    unloaded_versions,
)
from logitsieve.decoding import LocalDecoder
from logitsieve.server.config import ServeConfig
from logitsieve.server.http.application import ServerView, read_json
from logitsieve.server.models.routes import Routes
from logitsieve.server.precision import step_back

MOST_JSON = 1 << 20
AT_ONCE = 2
MOST_WAITING = 6
RETRY_S = 1.0
ANSWER_S = 4.0  # less than the port's PATIENCE_S, so that browsers see the error

T = TypeVar("T")
Admit = Callable[[float | None], object]
Answering = Callable[[LocalDecoder, Any, Question, ServeConfig], dict[str, Any]]


class Desk:
    """Computes on loaded versions, on two threads of lower priority."""

    def __init__(
        self, routes: Callable[[], Routes], admit: Admit, answer_s: float = ANSWER_S
    ) -> None:
        self.routes, self._admit, self._answer_s = routes, admit, answer_s
        self._pool = ThreadPoolExecutor(AT_ONCE, "logitsieve-console", initializer=step_back)
        self._waiting, self._closed = 0, False

    async def run(self, work: Callable[[LocalDecoder], T], model: str) -> T:
        """Return `work(decoder)`.

        ModelNotFound or Unavailable without the model; Overloaded; DeadlineExceeded.
        """
        if self._closed:
            raise Unavailable("the server is stopping")
        served = self.routes().served(model)
        self._admit(self._answer_s)
        if self._waiting >= MOST_WAITING:
            raise Overloaded(f"the console computes {AT_ONCE} answers at once", RETRY_S)

        def leased() -> T:
            with served.leases:
                return work(served.whole)

        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, leased)
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), self._answer_s)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no answer within {self._answer_s:g} s") from error
        except asyncio.CancelledError:
            if future.cancelled():
                raise Unavailable("the server is stopping") from None
            raise

    def _done(self, future: asyncio.Future[T]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # or asyncio would log that nobody asked for it

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(cancel_futures=True)


class Api:
    def __init__(self, desk: Desk, view: ServerView) -> None:
        self._desk, self._view = desk, view

    def routes(self) -> list[Route]:
        get: dict[str, Callable[[Request], Awaitable[Any]]] = {
            "overview": self.overview,
            "points": self.points,
            "chosen": self.chosen,
        }
        post: dict[str, Callable[[Request], Awaitable[Any]]] = {
            "top": partial(self.answer, answers.top),
            "draws": partial(self.answer, answers.draws),
            "why-not": partial(self.answer, answers.why_not),
        }
        return [
            Route(f"/api/{name}", _as_json(endpoint), methods=[method])
            for method, endpoints in (("GET", get), ("POST", post))
            for name, endpoint in endpoints.items()
        ]

    async def overview(self, request: Request) -> Any:
        view, routes = self._view, self._desk.routes()
        unloaded = await asyncio.to_thread(unloaded_versions, view.config.model_repository, routes)
        facts = overview_facts(routes, view.registry, view.ready(), unloaded)
        return facts | {"port": view.config.port}

    async def points(self, request: Request) -> Any:
        return await self._on_model(request, points_facts)

    async def chosen(self, request: Request) -> Any:
        precision = _number(request, "min_precision", float, None)
        max_error = _number(request, "max_error", float, None)
        k = _number(request, "k", int, 1)
        return await self._on_model(request, lambda one: chosen_facts(one, precision, k, max_error))

    async def answer(self, answering: Answering, request: Request) -> Any:
        question = await _read_question(request)

        def work(decoder: LocalDecoder) -> dict[str, Any]:
            hidden_states = read_context(decoder.index, question)
            return answering(decoder, hidden_states, question, self._view.config)

        return await self._desk.run(work, question.get("model", ""))

    async def _on_model(self, request: Request, work: Callable[[LocalDecoder], Any]) -> Any:
        return await self._desk.run(work, request.query_params.get("model", ""))


def _as_json(endpoint: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Any]:
    async def respond(request: Request) -> Response:
        return JSONResponse(await endpoint(request))

    return respond


async def _read_question(request: Request) -> Question:
    question = await read_json(request, MOST_JSON)
    if not isinstance(question.get("model", ""), str):
        raise InvalidRequest("model", f"{question['model']!r:.80}", "the name of a model")
    return question


def _number(request: Request, name: str, kind: type, default: Any) -> Any:
    text = request.query_params.get(name, "")
    if not text:
        return default
    try:
        return kind(text)
    except ValueError as error:
        allowed = "a whole number" if kind is int else "a number"
        raise InvalidRequest(name, f"{text!r:.80}", allowed) from error
