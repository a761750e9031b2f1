"""DecoderClient: the Decoder protocol over gRPC, one channel, blocking calls."""

from __future__ import annotations

import json
from functools import partial
from numbers import Real
from types import TracebackType
from typing import Any, Self

import grpc

from logitsieve.client.channel import Tls, open_channel, to_metadata
from logitsieve.client.errors import to_exception
from logitsieve.client.models import ModelInfo, model_info
from logitsieve.client.remote import RemoteDecoder
from logitsieve.client.stream import DecodeStream
from logitsieve.types.errors import InvalidRequest
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.decoder_pb2_grpc import DecoderStub, ModelsStub

TIMEOUT_S = 5.0
MAX_TIMEOUT_S = 3600.0
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


class DecoderClient(RemoteDecoder):
    """A decoder at `address` ("localhost:50051"). Connects at the first call; thread-safe.

    Each call, its retries included, takes at most `timeout_s` seconds, at most an hour. Messages
    over `max_message_bytes`, either way, raise RequestTooLarge. `token` goes along with every call;
    it needs `tls` unless the address is this machine.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = TIMEOUT_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        tls: Tls | None = None,
        token: str = "",
    ) -> None:
        self.address = address
        self.timeout_s = _seconds(timeout_s)
        self._max_message_bytes = max_message_bytes
        self._metadata = to_metadata(token, address, tls)
        self._channel = open_channel(
            address,
            tls,
            [
                ("grpc.service_config", SERVICE_CONFIG),
                ("grpc.max_send_message_length", max_message_bytes),
                ("grpc.max_receive_message_length", max_message_bytes),
            ],
        )
        self._decoder = DecoderStub(self._channel)
        self._models = ModelsStub(self._channel)

    def stream(self, *, timeout_s: float | None = None) -> DecodeStream:
        """A decoder whose calls share one stream; close it, or use it in a `with`.

        Each of its calls takes at most `timeout_s` seconds, or as many as those of this client.
        """
        return DecodeStream(
            partial(self._decoder.Decode, metadata=self._metadata),
            timeout_s=self.timeout_s if timeout_s is None else _seconds(timeout_s),
            max_message_bytes=self._max_message_bytes,
        )

    def models(self) -> list[ModelInfo]:
        """Every version that the server knows, without operating points."""
        found: list[ModelInfo] = []
        request = pb.ListModelsRequest()
        while True:
            page = self._call(self._models.List, request)
            found += [model_info(model) for model in page.models]
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    def model(self, name: str) -> ModelInfo:
        """The version that "name", "name@version" or "name:alias" means, or ModelNotFound."""
        return model_info(self._call(self._models.Get, pb.GetModelRequest(model=name)))

    def close(self) -> None:
        """Close the channel; calls in flight fail."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, rpc: str, request: Any) -> Any:
        return self._call(getattr(self._decoder, rpc), request)

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=self.timeout_s, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise to_exception(failure) from failure


def _seconds(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value <= MAX_TIMEOUT_S:
        allowed = f"a positive number of seconds, at most {MAX_TIMEOUT_S:.0f}"
        raise InvalidRequest("timeout_s", repr(value), allowed)
    return float(value)
