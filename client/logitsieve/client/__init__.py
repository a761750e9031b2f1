"""The thin client: a Decoder over gRPC. Loads numpy, grpc and protobuf, and nothing else."""

from logitsieve.client.admin import AdminClient
from logitsieve.client.async_client import AsyncDecoderClient
from logitsieve.client.async_stream import AsyncDecodeStream
from logitsieve.client.channel import Tls
from logitsieve.client.decoder_client import DecoderClient
from logitsieve.client.models import Limits, ModelInfo, OperatingPoint
from logitsieve.client.stream import DecodeStream

__all__ = [
    "AdminClient",
    "AsyncDecodeStream",
    "AsyncDecoderClient",
    "DecodeStream",
    "DecoderClient",
    "Limits",
    "ModelInfo",
    "OperatingPoint",
    "Tls",
]
