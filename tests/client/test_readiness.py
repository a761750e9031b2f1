import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from logitsieve.api.errors import DeadlineExceeded, LogitsieveError
from logitsieve.client import AsyncDecoderClient, DecoderClient
from logitsieve.client.decoder_client import SERVING
from tests.client.answering import answering

COMING = HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING).SerializeToString()


def checked(*replies: bytes | grpc.StatusCode) -> AbstractContextManager[str]:
    """A server of health checks with these replies, the last one for ever."""
    left = list(replies)

    def check(message: bytes, context: grpc.ServicerContext) -> bytes:
        reply = left.pop(0) if len(left) > 1 else left[0]
        return reply if isinstance(reply, bytes) else bytes(context.abort(reply, "told"))

    check_handler = grpc.unary_unary_rpc_method_handler(check)
    return answering("grpc.health.v1.Health", Check=check_handler)


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
    with checked(grpc.StatusCode.UNAVAILABLE, COMING, SERVING) as address:
        waiting(address, 60)


@BOTH
def test_it_says_why_it_gave_up(waiting: Waiting) -> None:
    with pytest.raises(DeadlineExceeded, match=r"not ready within .* nothing answers"):
        waiting("127.0.0.1:1", 1)
    told = pytest.raises(DeadlineExceeded, match="no model answers")
    with checked(COMING) as address, told:
        waiting(address, 0.3)


@BOTH
def test_it_waits_for_no_server_that_knows_no_health(waiting: Waiting) -> None:
    told = pytest.raises(LogitsieveError, match="told")
    with checked(grpc.StatusCode.UNIMPLEMENTED) as address, told:
        waiting(address, 60)
