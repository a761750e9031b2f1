from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any

import grpc

from logitsieve.api.results import TopKReply
from logitsieve.decoding.auto import fitted_to
from logitsieve.server.config import ServeConfig
from logitsieve.server.metrics import CLIENT_WAIT, SHED, Call, Metrics
from logitsieve.server.models.repository import Repository
from logitsieve.server.precision import Shadow
from logitsieve.server.rpc.codec import to_resolved_spec, to_response
from logitsieve.server.rpc.handlers import unary
from logitsieve.server.rpc.methods import METHODS, Method
from logitsieve.server.rpc.stream import DecodeStreams
from logitsieve.server.scheduling.executor import Executor
from logitsieve.v1.rpcs import Reply

Write = Callable[[Reply], bytes]


@dataclass(eq=False)
class DecoderService:
    config: ServeConfig
    repository: Repository
    work: Executor
    metrics: Metrics
    shadow: Shadow

    def __post_init__(self) -> None:
        self.streams = DecodeStreams(self.answer, self.metrics, self.config.max_streams)

    def handler(self) -> grpc.GenericRpcHandler:
        handlers = {
            rpc.name: unary(rpc.name, rpc.request, partial(self.answer, method), self.metrics)
            for method in METHODS.values()
            for rpc in (method.rpc,)
        }
        handlers["Decode"] = grpc.stream_stream_rpc_method_handler(self.streams.decode)
        return grpc.method_handlers_generic_handler("logitsieve.v1.Decoder", handlers)

    async def answer(
        self, method: Method, request: Any, call: Call, write: Write | None = None
    ) -> bytes:
        spec = request.model_spec
        served = self.repository.routes.served(spec.model)
        decoder = served.decoder
        call.route(spec.model, decoder.name, decoder.version)
        self._admit(call)
        with served.leases:
            prepared = method.read(request, self.config, decoder.index)
            call.admitted_ns = perf_counter_ns()
            asked = to_resolved_spec(spec, self.config.max_error)
            del request, spec
            call.shrink(call.size + prepared.reply_bytes)
            asked = fitted_to(asked, prepared.purpose, decoder.auto, prepared.rows)
            chosen = served.choose(asked, prepared.rows, prepared.k, method.finds_log_z)
            reply, call.queue_ns, call.device_ns = await self.work.run(
                chosen.engine,
                prepared,
                estimate_us=prepared.rows * chosen.us_per_row,
                extra_us=served.extra_us(prepared.logits, prepared.draws),
                pace=chosen.pace,
                arrived_ns=call.arrived_ns,
                time_left_s=call.left_s,
                offloaded=served.offloaded,
                timings=call.timings,
            )
            call.answer = reply.answer
            if prepared.independent is not None and isinstance(reply, TopKReply):
                self.shadow.offer(served, chosen, prepared.independent, reply)
            if write is None:
                waited_ns = call.client_wait_ns + call.queue_ns
                return to_response(method.rpc.response, reply, chosen.origin, waited_ns)
            return write(reply)

    def _admit(self, call: Call) -> None:
        waited_ns = perf_counter_ns() - call.arrived_ns
        self.work.admit(call.left_s, waited_ns * 1e-9)
        if call.client_wait_ns:
            call.shed = CLIENT_WAIT  # a refusal now is due to the wait that the client reports
            self.work.admit(call.left_s, (call.client_wait_ns + waited_ns) * 1e-9)
            call.shed = SHED
