"""The endpoints /api/...: JSON for pages, tests and scripts (docs/console.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from logitsieve.api.errors import InvalidRequest
from logitsieve.console import answers, points, why_not
from logitsieve.console.desk import Desk
from logitsieve.console.overview import overview_facts, unloaded_versions
from logitsieve.console.questions import Question, read_context
from logitsieve.decoding import LocalDecoder
from logitsieve.server.config import ServeConfig
from logitsieve.server.http.application import ServerView, read_json

MOST_JSON = 1 << 20  # bytes of a question

Answering = Callable[[LocalDecoder, Any, Question, ServeConfig], dict[str, Any]]


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
            "why-not": partial(self.answer, why_not.why_not),
        }
        return [
            Route(f"/api/{name}", _as_json(endpoint), methods=[method])
            for method, endpoints in (("GET", get), ("POST", post))
            for name, endpoint in endpoints.items()
        ]

    async def overview(self, request: Request) -> Any:
        view, routes = self._view, self._desk.routes()
        unloaded = await asyncio.to_thread(unloaded_versions, view.config.models, routes)
        return overview_facts(routes, view.registry, view.ready(), unloaded)

    async def points(self, request: Request) -> Any:
        return await self._on_model(request, points.points_facts)

    async def chosen(self, request: Request) -> Any:
        precision = _number(request, "min_precision", float, None)
        k = _number(request, "k", int, 1)
        return await self._on_model(request, lambda one: points.chosen_facts(one, precision, k))

    async def answer(self, answering: Answering, request: Request) -> Any:
        question = await _read_question(request)

        def work(decoder: LocalDecoder) -> dict[str, Any]:
            hidden = read_context(decoder.index, question)
            return answering(decoder, hidden, question, self._view.config)

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
