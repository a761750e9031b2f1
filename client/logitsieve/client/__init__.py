"""The client, a Decoder over gRPC, which imports only numpy, grpc and protobuf."""

from logitsieve.client.admin import AdminClient, AsyncAdminClient
from logitsieve.client.connection import Tls
from logitsieve.client.decoder_client import (
    AsyncDecoderClient,
    DecoderClient,
    Limits,
    ModelInfo,
    PointInfo,
)
from logitsieve.client.stream import AsyncDecodeStream, DecodeStream

__all__ = [
    "AdminClient", "AsyncAdminClient", "AsyncDecodeStream", "AsyncDecoderClient", "DecodeStream",
    "DecoderClient", "Limits", "ModelInfo", "PointInfo", "Tls",
]  # fmt: skip
