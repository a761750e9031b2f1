"""Targets of the fuzzer: each takes any bytes and names the outcome, or raises.

What is said is short and of few kinds, so that one input of each kind makes a corpus.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from logitsieve.api.errors import InvalidRequest
from logitsieve.index.manifest import MANIFEST_FILE
from logitsieve.server.rpc.codec import to_array, to_vector
from logitsieve.utils.hidden import as_hidden
from logitsieve.utils.wire_tensors import DType, encode
from logitsieve.v1 import decoder_pb2 as pb
from tools.fuzz.feed import Feed, built
from tools.fuzz.indexes import Opened, read_manifest
from tools.fuzz.models import MODEL, D, write_models
from tools.fuzz.services import Services

Target = Callable[[bytes], str]

KSERVE = "inference.GRPCInferenceService"
STREAMED = 6  # messages at most


def unary_requests(service: str) -> dict[str, type[Message]]:
    """The requests of a service's unary methods, by their paths."""
    methods = pb.DESCRIPTOR.services_by_name[service].methods
    return {
        f"logitsieve.v1.{service}/{method.name}": GetMessageClass(method.input_type)
        for method in methods
        if not method.client_streaming
    }


# The method -> its request, by the port that it is on.
PUBLIC = unary_requests("Decoder") | unary_requests("Models")
CHANGING = unary_requests("Admin")
KSERVE_CHANGING = ("RepositoryModelLoad", "RepositoryModelUnload")
KSERVE_PUBLIC = (
    *("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig"),
    *("ModelStatistics", "ModelInfer", "RepositoryIndex"),
    *KSERVE_CHANGING,
)
NAMES = (
    *("tensors", "manifest", "index", "decode"),
    *(path.rpartition("/")[2] for path in (*PUBLIC, *CHANGING)),
    *KSERVE_PUBLIC,
    *(f"Admin{rpc}" for rpc in KSERVE_CHANGING),
)


@contextmanager
def targets(kernels: Path | None = None) -> Iterator[dict[str, Target]]:
    """Yield the targets by name, over models in a scratch folder; `kernels` keeps compiled ones."""
    with tempfile.TemporaryDirectory() as scratch:
        models = Path(scratch) / "models"
        write_models(models)
        good = models / MODEL / "2"
        services = Services(models, kernels)
        found: dict[str, Target] = {
            "tensors": tensors,
            "manifest": partial(read_manifest, good=(good / MANIFEST_FILE).read_bytes()),
            "index": Opened(good, Path(scratch), kernels),
            "decode": partial(_streamed, services),
        }
        public = PUBLIC | {f"{KSERVE}/{rpc}": _kserve(rpc) for rpc in KSERVE_PUBLIC}
        changing = CHANGING | {f"{KSERVE}/{rpc}": _kserve(rpc) for rpc in KSERVE_CHANGING}
        for path, kind in public.items():
            found[path.rpartition("/")[2]] = partial(_asked, services, path, kind)
        for path, kind in changing.items():
            prefix = "Admin" if path.startswith(KSERVE) else ""
            found[prefix + path.rpartition("/")[2]] = partial(_changed, services, path, kind)
        try:
            yield {name: found[name] for name in NAMES}
        finally:
            services.close()


def tensors(data: bytes) -> str:
    """An array of the rows and columns that were named, over the same bytes, or InvalidRequest."""
    feed = Feed(data)
    only = (None, *DType)[feed.byte() % 7]
    message = built(pb.Tensor, feed)
    try:
        array = to_array(message, "hidden_states", only)
        assert array.shape == (message.rows, message.cols)
        assert encode(array) == (message.dtype, message.rows, message.cols, message.data)
        if only is not None:
            assert to_vector(message, "hidden_states", only).shape == (message.rows,)
        elif feed.byte() % 2:
            assert as_hidden(array, D).shape == (message.rows, D)
    except InvalidRequest as error:
        return f"refused: {error.field}"
    return f"read: {array.dtype}"


def _message(kind: type[Message], feed: Feed) -> bytes:
    """A message of the bytes as they are, or built from fields."""
    if feed.byte() % 4 == 3:
        return feed.rest()
    return bytes(built(kind, feed).SerializeToString())


def _asked(services: Services, path: str, kind: type[Message], data: bytes) -> str:
    end = services.call(path, _message(kind, Feed(data)))
    services.require_alive()
    return end


def _changed(services: Services, path: str, kind: type[Message], data: bytes) -> str:
    end = services.call(path, _message(kind, Feed(data)), "admin")
    if end == "OK":
        services.put_back()
    services.require_alive()
    return end


def _streamed(services: Services, data: bytes) -> str:
    feed = Feed(data)
    messages = [_message(pb.DecodeRequest, feed) for _ in range(1 + feed.byte() % STREAMED)]
    end = services.stream(messages)
    services.require_alive()
    return end


def _kserve(rpc: str) -> Any:
    from tritonclient.grpc import service_pb2 as kserve

    return getattr(kserve, f"{rpc}Request")
