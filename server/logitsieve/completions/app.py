import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic, time
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from logitsieve.api.errors import InvalidRequest, MissingExtra, ModelNotFound, naming
from logitsieve.client.llamacpp import grammars_of
from logitsieve.completions import fields
from logitsieve.completions.answers import Choice, CompletionWriter, Speller
from logitsieve.completions.checkers import checked, integer
from logitsieve.completions.decode_loop import DecodeLoop, Piece, Task
from logitsieve.completions.failures import error_object, failure
from logitsieve.completions.fields import Asked
from logitsieve.completions.journal import GONE, MOST_JSON, Ticket, unless_gone
from logitsieve.completions.lanes import Lanes
from logitsieve.completions.tools import CallReader
from logitsieve.grammar import Grammars
from logitsieve.llamacpp import LlamaContext, render_chat
from logitsieve.llamacpp.tokenizer import MOST_TEXT
from logitsieve.server.http.application import read_json
from logitsieve.server.loops import call_soon

News = tuple[int, Piece | Exception]
Responding = Callable[[Request], Awaitable[Response]]


@dataclass
class Facts:
    name: str
    index_hash: Callable[[], str]
    created: int = field(default_factory=lambda: int(time()))


class Endpoint:
    def __init__(
        self, engine: DecodeLoop, facts: Facts, lanes: Lanes, *, timeout_s: float = 600
    ) -> None:
        self.engine, self.facts, self._lanes = engine, facts, lanes
        self._context: LlamaContext = engine.context
        self._timeout_s = timeout_s
        self._grammars: Grammars | None = None
        self.speller = Speller(self._context)
        self.metrics = Metrics(engine)

    def application(self) -> Starlette:
        get: dict[str, Responding] = {
            "/v1/models": self._models,
            "/v1/models/{name:path}": self._model,
            "/tokenizer_info": self._tokenizer_info,
            "/metrics": self._scrape,
        }
        post: dict[str, Responding] = {
            "/v1/completions": partial(self._answer, fields.completion),
            "/v1/chat/completions": partial(self._answer, fields.chat),
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
        }
        routes = [Route("/health", self._health)]
        for method, endpoints in (("GET", get), ("POST", post)):
            for path, endpoint in endpoints.items():
                routes.append(Route(path, self._guarded(path, endpoint), methods=[method]))
        handlers = {Exception: failure, HTTPException: failure}
        application = Starlette(routes=routes, exception_handlers=handlers)
        application.router.redirect_slashes = False
        return application

    def _guarded(self, path: str, endpoint: Responding) -> Responding:
        async def answer(request: Request) -> Response:
            try:
                reply = await endpoint(request)
            except ClientDisconnect:
                reply = Response(status_code=GONE)
            except Exception as error:
                reply = await failure(request, error)
            self.metrics.answered.labels(path, reply.status_code).inc()
            return reply

        return answer

    async def _answer(self, read: Callable[..., Asked], request: Request) -> Response:
        began, ticket = monotonic(), Ticket.of(request, self._timeout_s)
        body = await read_json(request, MOST_JSON)
        work = partial(read, body, self._context, self.facts.name)
        asked = await self._lanes.run(ticket, work)
        if asked.structure is not None:
            asked = await self._lanes.run(ticket, partial(self._structured, asked), grammar=True)
        self.engine.check(len(asked.prompts) * asked.n)
        call = Call(self, asked, began, ticket)
        self.engine.submit(call.tasks)
        if asked.stream:
            return StreamingResponse(call.events(), media_type="text/event-stream")
        try:
            return JSONResponse(await unless_gone(request, call.whole()))
        finally:
            self.engine.cancel(call.tasks)

    def _structured(self, asked: Asked) -> Asked:
        """Compile the grammar of a request, on the thread of grammars."""
        assert asked.structure is not None, "it is asked for"
        try:
            if self._grammars is None:
                self._grammars = grammars_of(self._context)
        except MissingExtra as error:
            raise InvalidRequest(asked.structure.field, "a grammar", str(error)) from error
        grammar = asked.structure.compiled(self._grammars)
        return replace(asked, options=replace(asked.options, grammar=grammar.matcher))

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def _model(self, request: Request) -> Response:
        if (name := request.path_params["name"]) != self.facts.name:
            raise ModelNotFound(f"model: got {name!a:.80}, here is only {self.facts.name!a:.80}")
        return JSONResponse(self._described())

    def _described(self) -> dict[str, Any]:
        facts = {"id": self.facts.name, "object": "model", "created": self.facts.created}
        longest = self._context.positions // self._context.sequences
        return facts | {"owned_by": "logitsieve", "max_model_len": longest}

    async def _tokenize(self, request: Request) -> Response:
        ticket = Ticket.of(request, self._timeout_s)
        given = checked(await read_json(request, MOST_JSON), fields.TOKENIZE)
        if ("prompt" in given) == ("messages" in given):
            raise InvalidRequest("prompt", "nothing or both", "one of prompt and messages")
        begin: bool = given.get("add_special_tokens", True)

        def work() -> list[int]:
            if "messages" in given:
                with naming("messages"):
                    return self._context.tokenize(render_chat(self._context, given["messages"]))
            if not given["prompt"]:
                return self._context.begin * begin
            return fields.tokens(self._context, given["prompt"], begin=begin, most=MOST_TEXT)

        tokens = await self._lanes.run(ticket, work)
        longest = self._described()["max_model_len"]
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": longest})

    async def _detokenize(self, request: Request) -> Response:
        ticket = Ticket.of(request, self._timeout_s)
        given = checked(await read_json(request, MOST_JSON), fields.DETOKENIZE)
        ids, vocab_size = given.get("tokens"), self._context.gguf.vocab_size
        if not isinstance(ids, list):
            raise InvalidRequest("tokens", f"{ids!a:.80}", "a list of token ids")
        if len(ids) > MOST_TEXT:
            raise InvalidRequest("tokens", f"{len(ids)} ids", f"at most {MOST_TEXT}")
        whole = partial(integer(0, vocab_size - 1), "tokens")

        def work() -> str:
            return self.speller.text(list(map(whole, ids)), MOST_JSON)

        return JSONResponse({"prompt": await self._lanes.run(ticket, work)})

    async def _tokenizer_info(self, request: Request) -> Response:
        gguf = self._context.gguf
        facts = {
            "tokenizer_class": "GGUF",
            "bos_token": gguf.special("bos") or None,
            "eos_token": gguf.special("eos") or None,
            "add_bos_token": bool(self._context.begin),
            "chat_template": gguf.chat_template,
        }
        return JSONResponse(facts)

    async def _scrape(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})


class Call:
    def __init__(self, endpoint: Endpoint, asked: Asked, began: float, ticket: Ticket) -> None:
        self._endpoint, self._began, self._ticket = endpoint, began, ticket
        self._news: asyncio.Queue[News] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.tasks = [
            self._task(asked, place, choice)
            for place in range(len(asked.prompts))
            for choice in range(asked.n)
        ]
        scores, speller = asked.logprobs is not None, endpoint.speller
        choices = []
        for index, task in enumerate(self.tasks):
            text = asked.texts[index // asked.n]
            text = speller.text(task.prompt) if text is None else text
            reader = None if asked.calls is None else CallReader(asked.calls.marked)
            echoed = text if asked.echo else ""
            choices.append(Choice(index, task, speller, echoed, scores, reader))
        facts, kind = endpoint.facts, "chatcmpl" if asked.chat else "cmpl"
        name = f"{kind}-{secrets.token_hex(12)}"
        about = name, facts.name, int(time()), facts.index_hash()
        self._answer = CompletionWriter(asked, *about, choices)

    def _task(self, asked: Asked, place: int, choice: int) -> Task:
        drawing = asked.options.drawing(asked.n)  # a choice's seed depends on the request alone
        if drawing is not None:
            drawing = drawing._replace(seeds=drawing.seeds[choice : choice + 1])
        index = place * asked.n + choice

        def tell(news: Piece | Exception) -> None:
            call_soon(self._loop, self._news.put_nowait, (index, news))

        return Task(
            prompt=asked.prompts[place],
            options=asked.options,
            max_tokens=asked.max_tokens,
            drawing=drawing,
            echo=asked.echo,
            logprobs=asked.logprobs,
            deadline=self._ticket.until,
            request=self._ticket.number,
            tell=tell,
        )

    async def whole(self) -> dict[str, Any]:
        async for _ in self._texts():
            pass
        return self._answer.whole({"seconds": monotonic() - self._began})

    async def events(self) -> AsyncIterator[str]:
        answer = self._answer
        try:
            roles = answer.choices if answer.asked.chat else []
            async for choice, text in self._texts():
                for one in roles:  # not earlier: until a stream begins, a crash is retried
                    yield _event(answer.chunk(one, "", first=True))
                roles = []
                if text or choice.finish or choice.logprobs:
                    yield _event(answer.chunk(choice, text))
            if answer.asked.include_usage:
                yield _event(answer.last({"seconds": monotonic() - self._began}))
        except Exception as error:
            yield _event(error_object(error)[1])
        else:
            yield "data: [DONE]\n\n"
        finally:
            self._endpoint.engine.cancel(self.tasks)

    async def _texts(self) -> AsyncIterator[tuple[Choice, str]]:
        left = len(self.tasks)
        while left:
            index, news = await self._news.get()
            if isinstance(news, Exception):
                raise news
            choice = self._answer.choices[index]
            yield choice, choice.add(news)
            left -= bool(news.finish)
        self._endpoint.metrics.seconds.observe(monotonic() - self._began)


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, allow_nan=False)}\n\n"


class Counts(Collector):
    def __init__(self, prefix: str, counts: dict[str, tuple[str, Callable[[], float]]]) -> None:
        self._prefix, self._counts = prefix, counts

    def collect(self) -> Iterator[Metric]:
        for name, (text, value) in self._counts.items():
            yield CounterMetricFamily(f"{self._prefix}_{name}", text, value())


class Metrics:
    def __init__(self, engine: DecodeLoop) -> None:
        registry = self._registry = CollectorRegistry()
        prefix = "logitsieve_completions"
        self.answered = Counter(
            f"{prefix}_requests", "Requests answered.", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            f"{prefix}_request_duration_seconds",
            "From a completion's arrival to its end.",
            registry=registry,
        )
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "requests_running": (
                "Prompts and continuations being decoded.",
                lambda: len(engine.running),
            ),
            "requests_waiting": ("Prompts that wait.", lambda: len(engine.waiting)),
        }
        counts: dict[str, tuple[str, Callable[[], float]]] = {
            "prompt_tokens": ("Tokens of prompts.", lambda: engine.prompt_tokens),
            "generation_tokens": ("Tokens chosen.", lambda: engine.tokens),
            "scanned_rows": ("Exact logits computed.", lambda: engine.scanned),
            "draft_tokens": ("Tokens read before they were chosen.", lambda: engine.drafted),
            "accepted_tokens": ("Of these, the ones that were chosen.", lambda: engine.accepted),
        }
        for name, (text, value) in gauges.items():
            Gauge(f"{prefix}_{name}", text, registry=registry).set_function(value)
        registry.register(Counts(prefix, counts))

    def text(self) -> bytes:
        return generate_latest(self._registry)
