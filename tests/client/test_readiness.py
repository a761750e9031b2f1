import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from logitsieve.api.errors import DeadlineExceeded, LogitsieveError
from logitsieve.client import AsyncDecoderClient, DecoderClient
from logitsieve.client.decoder_client import SERVING

COMING = HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING).SerializeToString()


@contextmanager
def answering(*replies: bytes | grpc.StatusCode) -> Iterator[str]:
    """A server of health checks with these replies, the last one for ever."""
    left = list(replies)

    def check(message: bytes, context: grpc.ServicerContext) -> bytes:
        reply = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(reply, bytes):
            return reply
        return bytes(context.abort(reply, "told"))

    server = grpc.server(ThreadPoolExecutor(1))
    methods = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    handler = grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def wait(address: str, timeout_s: float) -> None:
    with DecoderClient(address) as client:
        client.wait_until_ready(timeout_s)


def wait_async(address: str, timeout_s: float) -> None:
    async def scene() -> None:
        async with AsyncDecoderClient(address) as client:
            await client.wait_until_ready(timeout_s)

    asyncio.run(scene())


Waiting = Callable[[str, float], None]
BOTH = pytest.mark.parametrize("waiting", [wait, wait_async])


def test_the_bytes_of_a_serving_server() -> None:
    ready = HealthCheckResponse(status=HealthCheckResponse.SERVING)
    assert ready.SerializeToString() == SERVING


@BOTH
def test_it_returns_once_a_model_answers(waiting: Waiting) -> None:
    with answering(grpc.StatusCode.UNAVAILABLE, COMING, SERVING) as address:
        waiting(address, 60)


@BOTH
def test_it_says_why_it_gave_up(waiting: Waiting) -> None:
    with pytest.raises(DeadlineExceeded, match=r"not ready within .* nothing answers"):
        waiting("127.0.0.1:1", 2)
    told = pytest.raises(DeadlineExceeded, match="no model answers")
    with answering(COMING) as address, told:
        waiting(address, 0.3)


@BOTH
def test_it_waits_for_no_server_that_knows_no_health(waiting: Waiting) -> None:
    told = pytest.raises(LogitsieveError, match="told")
    with answering(grpc.StatusCode.UNIMPLEMENTED) as address, told:
        waiting(address, 60)
