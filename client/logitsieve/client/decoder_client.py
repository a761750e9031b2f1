"""The Decoder protocol over gRPC, by calls on one channel."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from typing import Any, cast

import grpc

from logitsieve.api.errors import InvalidRequest
from logitsieve.client.connection import (
    AsyncConnection,
    BlockingConnection,
    Connection,
    Tls,
    seconds,
)
from logitsieve.client.models import Listing, ModelInfo, model_info
from logitsieve.client.readiness import POLL_S, Readiness
from logitsieve.client.remote_decoder import AsyncRemoteDecoder, RemoteDecoder, awaited
from logitsieve.client.stream import AsyncDecodeStream, DecodeStream, StreamOptions
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.decoder_pb2_grpc import DecoderStub, ModelsStub
from logitsieve.v1.rpcs import Rpc

ADDRESS = "localhost:50051"
TIMEOUT_S = 5.0
MAX_MESSAGE_BYTES = 64 << 20
METADATA_BYTES = 64 << 10

# gRPC retries after the server's grpc-retry-pushback-ms, until the deadline; not while failures
# outnumber successes by 500. A stopping server ends calls by CANCELLED.
SERVICE_CONFIG = json.dumps(
    {
        "retryThrottling": {"maxTokens": 1000, "tokenRatio": 1},
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.05s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"],
                },
            }
        ],
    }
)

KEEPALIVE_S = 30.0
MIN_KEEPALIVE_S = 10.0  # servers refuse more frequent pings
PING_S = 5.0


def channel_options(max_message_bytes: int, keepalive_s: float | None) -> list[tuple[str, Any]]:
    """Return options to retry, spread calls, reconnect and notice a dead server."""
    options = [
        ("grpc.service_config", SERVICE_CONFIG),
        # gRPC retries no larger call: by default 256 KiB.
        ("grpc.per_rpc_retry_buffer_size", max_message_bytes + METADATA_BYTES),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        # Or a restarted server is found after minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
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
    """A connection with the public port's stubs."""

    _call: Any  # blocking, or to be awaited

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        keepalive_s: float | None = KEEPALIVE_S,
        tls: Tls | None = None,
        token: str | None = None,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        if address is None:
            address = os.environ.get("LOGITSIEVE_ADDRESS") or ADDRESS
        chosen = dict(channel_options(max_message_bytes, keepalive_s)) | dict(options)
        super().__init__(address, timeout_s, tls, token, list(chosen.items()))
        self._max_message_bytes = max_message_bytes
        self._decoder = DecoderStub(self._channel)
        self._models = ModelsStub(self._channel)

    def _stream_options(self, timeout_s: float | None) -> StreamOptions:
        timeout_s = self.timeout_s if timeout_s is None else seconds(timeout_s)
        return StreamOptions(timeout_s, self._metadata, self._max_message_bytes, self._exception)

    def _ask(self, rpc: Rpc[Any], request: Any) -> Any:
        return self._call(getattr(self._decoder, rpc.name), request, lambda response: response)

    def _readiness(self, timeout_s: float | None) -> Readiness:
        timeout_s = self.timeout_s if timeout_s is None else seconds(timeout_s)
        return Readiness(self._channel, self.address, timeout_s, self._exception)


class DecoderClient(DecoderConnection, BlockingConnection, RemoteDecoder):
    """A decoder at `address`, else LOGITSIEVE_ADDRESS, else localhost:50051; thread-safe.

    Several servers share the calls: "ipv4:10.0.0.1:50051,10.0.0.2:50051", or a name of all. A call
    with its retries takes at most `timeout_s` seconds, up to an hour; a server silent for
    `keepalive_s` is pinged. Messages over `max_message_bytes` raise RequestTooLarge. `token`, by
    default LOGITSIEVE_TOKEN, needs `tls` except for this machine. `options` are gRPC's channel
    arguments.
    """

    def wait_until_ready(self, timeout_s: float | None = None) -> None:
        """Wait until a model answers; DeadlineExceeded after `timeout_s`, or the client's."""
        ready = self._readiness(timeout_s)
        while True:
            try:
                reply = ready.ask()
            except grpc.RpcError as failure:
                reply = failure
            if ready.settled(reply):
                return
            time.sleep(POLL_S)

    def stream(self, *, timeout_s: float | None = None) -> DecodeStream:
        """Open a decoder with one stream for its calls, each within `timeout_s`; close it."""
        return DecodeStream(self._decoder.Decode, self._stream_options(timeout_s))

    def models(self) -> list[ModelInfo]:
        """Return every version of the server, without operating points."""
        listing = Listing()
        while not listing.whole:
            self._call(self._models.List, listing.request, listing.add)
        return listing.models

    def model(self, name: str) -> ModelInfo:
        """Return the version for "name", "name@version" or "name:alias"; ModelNotFound."""
        request = pb.GetModelRequest(model=name)
        return cast(ModelInfo, self._call(self._models.Get, request, model_info))


class AsyncDecoderClient(DecoderConnection, AsyncConnection, AsyncRemoteDecoder):
    """A `DecoderClient` for one event loop."""

    model = awaited(DecoderClient.model)

    async def wait_until_ready(self, timeout_s: float | None = None) -> None:
        """Wait like a `DecoderClient`."""
        ready = self._readiness(timeout_s)
        while True:
            try:
                reply = await ready.ask()
            except grpc.RpcError as failure:
                reply = failure
            if ready.settled(reply):
                return
            await asyncio.sleep(POLL_S)

    def stream(self, *, timeout_s: float | None = None) -> AsyncDecodeStream:
        """Open a stream like a `DecoderClient`."""
        return AsyncDecodeStream(self._decoder.Decode, self._stream_options(timeout_s))

    async def models(self) -> list[ModelInfo]:
        """Return every version of the server, without operating points."""
        listing = Listing()
        while not listing.whole:
            await self._call(self._models.List, listing.request, listing.add)
        return listing.models
