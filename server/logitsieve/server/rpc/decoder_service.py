"""The Decoder service: requests, one by one or on a stream, through the decoders in process."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc

from logitsieve.api.results import TopKReply
from logitsieve.server.config import ServeConfig
from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.models.repository import Repository
from logitsieve.server.precision.shadow import Shadow
from logitsieve.server.rpc.arguments import to_aim
from logitsieve.server.rpc.handlers import Context, parse, unary
from logitsieve.server.rpc.methods import METHODS, Method
from logitsieve.server.rpc.replies import to_response
from logitsieve.server.rpc.stream import Streams
from logitsieve.server.scheduling.executor import Executor


class DecoderService:
    """Answers through the same decoders that serve in process."""

    def __init__(
        self,
        config: ServeConfig,
        repository: Repository,
        work: Executor,
        metrics: Metrics,
        shadow: Shadow,
    ) -> None:
        self._config = config
        self._repository = repository
        self._work = work
        self._metrics = metrics
        self._shadow = shadow
        self._streams = Streams(self.answer, metrics)

    def handler(self) -> grpc.GenericRpcHandler:
        """All methods of the service, over raw bytes."""
        handlers = {
            method.rpc: unary(method.rpc, partial(self._unary, method), self._metrics)
            for method in METHODS.values()
        }
        handlers["Decode"] = self._streams.handler()
        return grpc.method_handlers_generic_handler("logitsieve.v1.Decoder", handlers)

    def drain(self) -> None:
        """Take no more messages from streams; each ends when what it has sent is answered."""
        self._streams.drain()

    async def _unary(self, method: Method, message: bytes, context: Context, call: Call) -> bytes:
        request = parse(method.request, message)
        return await self.answer(method, request, call, context.time_remaining())

    async def answer(
        self, method: Method, request: Any, call: Call, time_left_s: float | None
    ) -> bytes:
        """The serialized response to one request."""
        served = self._repository.served(request.target.model)
        call.model = served.decoder.name
        self._work.admit(time_left_s)  # what is refused costs no more than it must
        with served.leases:  # until the reply is made, whatever is loaded meanwhile
            asked = method.read(request, self._config, served.decoder.index)
            aim = to_aim(request.target, method.normalizer)
            priced = served.at(aim, asked.rows, asked.k, method.finds_log_z)
            reply, call.queue_ns, call.device_ns = await self._work.run(
                priced.point,
                asked,
                estimate_us=asked.rows * priced.us_per_row
                + priced.us_beside(asked.logits, asked.draws),
                arrived_ns=call.arrived_ns,
                time_left_s=time_left_s,
                on_gpu=served.on_gpu,
            )
            call.answer = reply.answer
            if asked.independent is not None and isinstance(reply, TopKReply):
                self._shadow.offer(served, priced, asked.independent, reply)
            return priced.origin + to_response(method.response, reply, call.queue_ns)
