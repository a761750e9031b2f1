"""DecoderClient: the Decoder protocol over gRPC, one channel, blocking calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from logitsieve.api.errors import InvalidRequest
from logitsieve.client.channel import Tls, to_target
from logitsieve.client.connection import Connection, seconds
from logitsieve.client.models import Listing, ModelInfo, model_info
from logitsieve.client.remote_decoder import RemoteDecoder
from logitsieve.client.stream import DecodeStream
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.decoder_pb2_grpc import DecoderStub, ModelsStub

TIMEOUT_S = 5.0
MAX_MESSAGE_BYTES = 64 << 20

# gRPC retries by itself, waits as long as the server's grpc-retry-pushback-ms says, and stops at
# the deadline; several addresses ("ipv4:host:port,host:port") share the load. CANCELLED is what
# gRPC itself says for a call that reaches a server in the moment it stops; a call that is cancelled
# on this side is over, and not retried.
SERVICE_CONFIG = json.dumps(
    {
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


# A server that was restarted is found again within a second or two, not two minutes.
RECONNECT = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

KEEPALIVE_S = 30.0
MIN_KEEPALIVE_S = 10.0  # servers take more frequent pings for abuse
PING_S = 5.0


def channel_options(max_message_bytes: int, keepalive_s: float | None) -> list[tuple[str, Any]]:
    """What makes a channel retry, spread, reconnect and notice that nobody is there any more."""
    options = [
        ("grpc.service_config", SERVICE_CONFIG),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        *RECONNECT,
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


class DecoderClient(Connection, RemoteDecoder):
    """A decoder at `address` ("localhost:50051"). Connects at the first call; thread-safe.

    Several addresses (["10.0.0.1:50051", "10.0.0.2:50051"]) share the calls, and a name those that
    it resolves to. While calls are in flight a server that has been silent for `keepalive_s` is
    asked whether it is there: streams break within 5 s if it is not.

    Each call, its retries included, takes at most `timeout_s` seconds, at most an hour. Messages
    over `max_message_bytes`, either way, raise RequestTooLarge. `token` goes along with every call;
    it needs `tls` unless the address is this machine.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        timeout_s: float = TIMEOUT_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        keepalive_s: float | None = KEEPALIVE_S,
        tls: Tls | None = None,
        token: str = "",
    ) -> None:
        super().__init__(
            to_target(address),
            timeout_s,
            tls,
            token,
            channel_options(max_message_bytes, keepalive_s),
        )
        self._max_message_bytes = max_message_bytes
        self._decoder = DecoderStub(self._channel)
        self._models = ModelsStub(self._channel)

    def stream(self, *, timeout_s: float | None = None) -> DecodeStream:
        """A decoder whose calls share one stream; close it, or use it in a `with`.

        Each of its calls takes at most `timeout_s` seconds, or as many as those of this client.
        """
        return DecodeStream(
            partial(self._decoder.Decode, metadata=self._metadata),
            timeout_s=self.timeout_s if timeout_s is None else seconds(timeout_s),
            max_message_bytes=self._max_message_bytes,
        )

    def models(self) -> list[ModelInfo]:
        """Every version that the server knows, without operating points."""
        listing = Listing()
        while not listing.whole:
            listing.add(self._call(self._models.List, listing.request))
        return listing.found

    def model(self, name: str) -> ModelInfo:
        """The version that "name", "name@version" or "name:alias" means, or ModelNotFound."""
        return model_info(self._call(self._models.Get, pb.GetModelRequest(model=name)))

    def _ask(self, rpc: str, request: Any) -> Any:
        return self._call(getattr(self._decoder, rpc), request)
