"""All RPCs of one server in this process, from the bytes of a request to the status of its end."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import grpc
import numpy as np

from logitsieve.server import ServeConfig
from logitsieve.server.kserve import kserve_services
from logitsieve.server.metrics import Metrics
from logitsieve.server.models.repository import Repository
from logitsieve.server.precision import Shadow
from logitsieve.server.rpc.decoder_service import DecoderService
from logitsieve.server.rpc.handlers import service
from logitsieve.server.rpc.intake import Held, Intake
from logitsieve.server.rpc.models_service import AdminService, ModelsService
from logitsieve.server.rpc.status import MAX_TEXT
from logitsieve.server.scheduling.executor import Executor
from logitsieve.utils.options import no_progress
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import TRAILER
from tools.fuzz.models import MODEL, D

Code = grpc.StatusCode
REFUSALS = "INVALID_ARGUMENT NOT_FOUND UNIMPLEMENTED RESOURCE_EXHAUSTED DEADLINE_EXCEEDED"
DOCUMENTED = {Code[name] for name in (*REFUSALS.split(), "OK", "PERMISSION_DENIED", "UNAVAILABLE")}
LIMITS = {"max_rows": 64, "max_k": 60, "max_samples": 16, "max_constraint_ids": 200}
GOOD = pb.TopKRequest(
    model_spec=pb.ModelSpec(model=MODEL),
    hidden_states=put(pb.Tensor(), np.ones((2, D), np.float32)),
    k=3,
).SerializeToString()
TOP_K = "logitsieve.v1.Decoder/TopK"
LOAD = "logitsieve.v1.Admin/Load"
STABLE = pb.LoadRequest(name=MODEL, version="1", alias="stable").SerializeToString()


class Defect(Exception):
    """A server that says what it should not."""


class Aborted(grpc.aio.AbortError):  # type: ignore[misc]  # the library is untyped
    pass


class Details(NamedTuple):
    """The call details by which gRPC finds a handler."""

    method: str
    invocation_metadata: tuple[()] = ()


class Context:
    """One call, as a handler sees it; `messages` are what a stream reads."""

    def __init__(self, messages: Iterable[bytes] = ()) -> None:
        self._messages = iter(messages)
        self.written: list[bytes] = []
        self.code, self.trailer = Code.OK, b""
        self.intake = Intake(1 << 40, 1 << 20)
        self.held = Held(self.intake, 0, "", "")

    def time_remaining(self) -> float | None:
        return None

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def set_trailing_metadata(self, metadata: object) -> None: ...

    def check_key(self) -> None: ...

    async def send_initial_metadata(self, metadata: object) -> None: ...

    async def abort(self, code: grpc.StatusCode, message: str, trailer: Any) -> NoReturn:
        self.code, self.trailer = code, dict(trailer)[TRAILER]
        raise Aborted

    async def read(self) -> Any:
        """The next message of a stream."""
        return next(self._messages, grpc.aio.EOF)

    async def write(self, message: bytes) -> None:
        """A reply on a stream."""
        self.written.append(message)


class Services:
    """The handlers of both ports of a server, on an event loop of their own."""

    def __init__(self, models: Path, kernels: Path | None) -> None:
        config = ServeConfig(model_repository=models, kernel_cache=kernels, **LIMITS)  # type: ignore[arg-type]
        repository, metrics = Repository(config), Metrics()
        for name, number in repository.find():
            repository.load(name, number, no_progress)
        self._work = Executor(ServeConfig(max_in_flight=64, max_queue_rows=4096))
        nothing = Shadow(0.0, 0.0, judged=lambda judgement: None, lost=lambda *why: None)
        decoder = DecoderService(config, repository, self._work, metrics, nothing)
        describing = ModelsService(config, repository, 1 << 20)
        self._admin = AdminService(describing, metrics)
        public = (decoder.handler(), service(describing, metrics))
        kserve = kserve_services()
        self._handlers = {
            "public": (*public, service(kserve.KserveService(repository, decoder), metrics)),
            "admin": (
                service(self._admin, metrics),
                service(kserve.KserveAdmin(self._admin), metrics),
            ),
        }
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        self._admin.close()
        self._work.close()
        self._loop.run_until_complete(asyncio.sleep(0))  # what was cancelled ends
        self._loop.close()

    def call(self, path: str, message: bytes, port: str = "public") -> str:
        """Status code of a unary call, and the field at fault; Defect if that is not documented."""
        context = Context()

        async def run() -> None:
            await self._handler(port, path).unary_unary(message, context)

        try:
            self._loop.run_until_complete(run())
        except Aborted:
            return _said(pb.Error.FromString(context.trailer), context.code)
        return "OK"

    def stream(self, messages: list[bytes]) -> str:
        """Outcomes of the messages of a Decode stream, one reply each."""
        context = Context(messages)
        handler = self._handler("public", "logitsieve.v1.Decoder/Decode").stream_stream
        self._loop.run_until_complete(handler(None, context))
        replies = [pb.DecodeResponse.FromString(reply) for reply in context.written]
        if len(replies) != len(messages):
            raise Defect(f"{len(messages)} messages, {len(replies)} replies")
        ends = {_end(reply) for reply in replies}
        return ", ".join(sorted(ends))

    def require_alive(self) -> None:
        """Defect unless a good request is answered."""
        if (end := self.call(TOP_K, GOOD)) != "OK":
            raise Defect(f"a good request ends in {end}")

    def put_back(self) -> None:
        """Load again a version that admin calls may have unloaded or renamed."""
        if (end := self.call(LOAD, STABLE, "admin")) != "OK":
            raise Defect(f"a good Load ends in {end}")

    def _handler(self, port: str, path: str) -> Any:
        found = (one.service(Details(f"/{path}")) for one in self._handlers[port])
        return next(handler for handler in found if handler is not None)


def _end(reply: pb.DecodeResponse) -> str:
    if reply.WhichOneof("reply") != "error":
        return "OK"
    code = next(code for code in Code if code.value[0] == reply.error.code)
    return _said(reply.error, code)


def _said(error: pb.Error, code: grpc.StatusCode) -> str:
    if code not in DOCUMENTED or error.code != code.value[0] or error.incident:
        raise Defect(f"{code}: {error}")
    if not 0 < len(error.message) <= MAX_TEXT:
        raise Defect(f"a message of {len(error.message)} characters")
    return f"{code.name} {error.field}".strip()
