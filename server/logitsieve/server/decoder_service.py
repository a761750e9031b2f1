"""The Decoder service: TopK; what is not built yet says so."""

from __future__ import annotations

import grpc

from logitsieve.server.codec import to_aim, to_array, to_response
from logitsieve.server.config import ServeConfig
from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.repository import Repository
from logitsieve.server.rpc import Context, not_built, parse, unary
from logitsieve.server.work import Work
from logitsieve.types.errors import InvalidRequest, NotBuilt
from logitsieve.v1 import decoder_pb2 as pb


class DecoderService:
    """Answers through the same decoders that serve in process."""

    def __init__(
        self, config: ServeConfig, repository: Repository, work: Work, metrics: Metrics
    ) -> None:
        self._config = config
        self._repository = repository
        self._work = work
        self._metrics = metrics

    def handler(self) -> grpc.GenericRpcHandler:
        """All methods of the service, over raw bytes."""
        metrics = self._metrics
        return grpc.method_handlers_generic_handler(
            "logitsieve.v1.Decoder",
            {
                "TopK": unary("TopK", self.top_k, metrics),
                "BeamStep": not_built("BeamStep", metrics),
                "Sample": not_built("Sample", metrics),
                "Score": not_built("Score", metrics),
                "Decode": not_built("Decode", metrics, stream=True),
            },
        )

    async def top_k(self, message: bytes, context: Context, call: Call) -> bytes:
        """TopKRequest -> TopKResponse."""
        request = parse(pb.TopKRequest, message)
        target = request.target
        served = self._repository.served(target.model)
        call.model = served.decoder.name
        if request.HasField("constraints"):
            raise NotBuilt("constraints: not built", "constraints")
        hidden, k = to_array(request.hidden, "hidden"), request.k
        rows = len(hidden)
        self._check_size(rows, k)
        point, us_per_row, origin = served.at(to_aim(target), rows, k)
        reply, call.queue_ns = await self._work.run(
            point.topk,
            hidden,
            k,
            estimate_us=rows * us_per_row,
            arrived_ns=call.arrived_ns,
            time_left_s=context.time_remaining(),
        )
        call.answer = reply.answer
        return origin + to_response(reply, call.queue_ns).SerializeToString()

    def _check_size(self, rows: int, k: int) -> None:
        if rows > self._config.max_rows:
            raise InvalidRequest("hidden", f"{rows} rows", f"1..{self._config.max_rows} rows")
        if k > self._config.max_k:
            raise InvalidRequest("k", k, f"an integer in 1..{self._config.max_k}")
