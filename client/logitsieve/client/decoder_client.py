"""Decoders over gRPC, and descriptions of a server's models."""

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from time import monotonic
from typing import Any, cast

import grpc

from logitsieve.api.errors import DeadlineExceeded, InvalidRequest
from logitsieve.client.connection import (
    AsyncConnection,
    BlockingConnection,
    Connection,
    Tls,
    seconds,
)
from logitsieve.client.remote_decoder import AsyncRemoteDecoder, RemoteDecoder, awaited, to_reply
from logitsieve.client.stream import AsyncDecodeStream, DecodeStream, StreamOptions
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.decoder_pb2_grpc import DecoderStub, ModelsStub
from logitsieve.v1.rpcs import Rpc


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A server's limits on one request."""

    max_rows: int
    max_k: int  # answers, scored ids or beams a row
    max_samples: int  # draws a row
    max_constraint_ids: int  # ids and words of masks, in all constraints together
    max_request_bytes: int


@dataclass(frozen=True, kw_only=True)
class PointInfo:
    """A measured operating point: a head and its knobs."""

    head: str
    knobs: Mapping[str, float]
    rows: int  # size of the timed batch
    us_per_row: float  # on the builder's machine
    precision_at: Mapping[int, float]  # k -> P@k
    mass_kept: float
    proven: bool


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A version of a model; lists of models leave `points` out."""

    name: str
    version: str
    state: str  # "loading", "available", "unloading" or "failed"
    error: str  # why it has failed
    digest: str
    aliases: tuple[str, ...]
    vocab_size: int
    dim: int
    vocabulary_id: str
    limits: Limits
    heads: tuple[str, ...]
    points: tuple[PointInfo, ...]


def model_info(model: pb.Model) -> ModelInfo:
    """Convert a message."""
    limits = model.limits
    same = ("name", "version", "error", "digest", "dim", "vocabulary_id")
    measured = ("rows", "us_per_row", "mass_kept", "proven")
    return ModelInfo(
        **{name: getattr(model, name) for name in same},
        state=pb.State.Name(model.state).removeprefix("STATE_").lower(),
        aliases=tuple(model.aliases),
        vocab_size=model.vocab_size,
        limits=Limits(**{each.name: getattr(limits, each.name) for each in fields(Limits)}),
        heads=tuple(model.heads),
        points=tuple(
            PointInfo(
                head=point.head.name,
                knobs=dict(point.head.knobs),
                precision_at=dict(point.precision_at),
                **{name: getattr(point, name) for name in measured},
            )
            for point in model.points
        ),
    )


ADDRESS = "localhost:50051"
TIMEOUT_S = 5.0
MAX_MESSAGE_BYTES = 64 << 20
METADATA_BYTES = 64 << 10

# gRPC retries after the server's grpc-retry-pushback-ms, until the deadline, and stops while
# failures outnumber successes by 500. A server that shuts down ends calls by CANCELLED.
SERVICE_CONFIG = json.dumps(
    {
        "retryThrottling": {"maxTokens": 1000, "tokenRatio": 1},
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [
            # Streams are not retried, since gRPC may never report the end of a retried one.
            {"name": [{"service": "logitsieve.v1.Decoder", "method": "Decode"}]},
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.05s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"],
                },
            },
        ],
    }
)

KEEPALIVE_S = 30.0
MIN_KEEPALIVE_S = 10.0  # servers refuse more frequent pings
PING_S = 5.0

POLL_S = 0.1
SERVING = b"\x08\x01"  # a HealthCheckResponse; so grpcio-health-checking is not needed
COMING = (  # the server is starting, or too busy for the check
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


def channel_options(max_message_bytes: int, keepalive_s: float | None) -> list[tuple[str, Any]]:
    """Return channel options for retries, load balancing, reconnection and keepalive."""
    options = [
        ("grpc.service_config", SERVICE_CONFIG),
        # gRPC does not retry larger calls; its default is 256 KiB.
        ("grpc.per_rpc_retry_buffer_size", max_message_bytes + METADATA_BYTES),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        # With the default backoff, a restarted server would be found after minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    if keepalive_s is None:
        return options
    if not keepalive_s >= MIN_KEEPALIVE_S:
        allowed = f"None, or at least {MIN_KEEPALIVE_S:.0f} seconds"
        raise InvalidRequest("keepalive_s", keepalive_s, allowed)
    return [
        *options,
        ("grpc.keepalive_time_ms", round(keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(PING_S * 1000)),
    ]


class DecoderConnection(Connection):
    """A connection to the public port."""

    _sleep: Any

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        keepalive_s: float | None = KEEPALIVE_S,
        tls: Tls | None = None,
        api_key: str | None = None,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        if address is None:
            address = os.environ.get("LOGITSIEVE_ADDRESS") or ADDRESS
        chosen = dict(channel_options(max_message_bytes, keepalive_s)) | dict(options)
        super().__init__(address, timeout_s, tls, api_key, list(chosen.items()))
        self._max_message_bytes = max_message_bytes
        self._decoder = DecoderStub(self._channel)
        self._models = ModelsStub(self._channel)

    def _stream_options(self, timeout_s: float | None) -> StreamOptions:
        timeout_s = self.timeout_s if timeout_s is None else seconds(timeout_s)
        return StreamOptions(timeout_s, self._metadata, self._max_message_bytes, self._exception)

    def _reply(self, rpc: Rpc[Any], request: Any) -> Any:
        return self._call(getattr(self._decoder, rpc.name), request, partial(to_reply, rpc))

    async def _listed(self) -> list[ModelInfo]:
        models, request = list[ModelInfo](), pb.ListModelsRequest()
        while True:
            page = await self._read(self._models.List, request, lambda response: response)
            models += map(model_info, page.models)
            if not page.next_page_token:
                return models
            request.page_token = page.next_page_token

    async def _until_ready(self, timeout_s: float) -> None:
        check = self._channel.unary_unary("/grpc.health.v1.Health/Check")
        until, why = monotonic() + timeout_s, "it is silent"
        while True:
            try:
                call = partial(check, b"", timeout=max(0.0, until - monotonic()))
                reply = await self._sent(call)
                if reply == SERVING:
                    return
                why = "no model answers"
            except grpc.RpcError as failure:
                if failure.code() not in COMING:
                    raise self._exception(failure) from failure
                if failure.code() != grpc.StatusCode.DEADLINE_EXCEEDED:  # it explains nothing
                    why = str(self._exception(failure))
            if monotonic() >= until:
                message = f"{self.address} is not ready within {timeout_s:g} s: {why}"
                raise DeadlineExceeded(message)
            await self._sent(partial(self._sleep, POLL_S))


class DecoderClient(DecoderConnection, BlockingConnection, RemoteDecoder):
    """A decoder at `address`, by default LOGITSIEVE_ADDRESS or localhost:50051. Thread-safe.

    "ipv4:10.0.0.1:50051,10.0.0.2:50051", or a host name with several addresses, balances calls
    between servers. A call takes at most `timeout_s` seconds with its retries, up to an hour, and a
    server that is silent for `keepalive_s` is pinged. Messages over `max_message_bytes` raise
    RequestTooLarge. `api_key`, by default LOGITSIEVE_API_KEY, needs `tls` unless the server is on
    this machine. `options` are gRPC's channel arguments.
    """

    _sleep = staticmethod(time.sleep)

    def wait_until_ready(self, timeout_s: float | None = None) -> None:
        """Wait until a model answers; DeadlineExceeded after `timeout_s` (the client's)."""
        timeout_s = self.timeout_s if timeout_s is None else seconds(timeout_s)
        return self._run(self._until_ready(timeout_s))

    def stream(self, *, timeout_s: float | None = None) -> DecodeStream:
        """Open a decoder that sends its calls over one stream, each with this timeout; close it."""
        return DecodeStream(self._decoder.Decode, self._stream_options(timeout_s))

    def models(self) -> list[ModelInfo]:
        """Return every version of every model, without operating points."""
        return self._run(self._listed())

    def model(self, name: str) -> ModelInfo:
        """Return the model "name", "name@version" or "name:alias"; or ModelNotFound."""
        request = pb.GetModelRequest(model=name)
        return cast(ModelInfo, self._call(self._models.Get, request, model_info))


class AsyncDecoderClient(DecoderConnection, AsyncConnection, AsyncRemoteDecoder):
    """A `DecoderClient` for one event loop: its methods are coroutines."""

    _sleep = staticmethod(asyncio.sleep)

    wait_until_ready = awaited(DecoderClient.wait_until_ready)
    models = awaited(DecoderClient.models)
    model = awaited(DecoderClient.model)

    def stream(self, *, timeout_s: float | None = None) -> AsyncDecodeStream:
        """Open a stream as `DecoderClient.stream` does."""
        return AsyncDecodeStream(self._decoder.Decode, self._stream_options(timeout_s))
