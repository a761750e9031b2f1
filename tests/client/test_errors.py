"""What the server raises is what the client raises: status.py and errors.py are inverse."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest

from logitsieve.api.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidKnob,
    InvalidRequest,
    LogitsieveError,
    ModelNotFound,
    Overloaded,
    RequestTooLarge,
    Unavailable,
    Unimplemented,
)
from logitsieve.client import AdminClient, AsyncDecoderClient, DecoderClient, Tls
from logitsieve.client.errors import EXCEPTIONS, of_message
from logitsieve.server.rpc.status import CODES
from logitsieve.server.rpc.status import to_status as status_of
from logitsieve.v1 import decoder_pb2 as pb
from tests.client.answering import answering
from tests.refusals import refused
from tests.server.materials import authority, signed_by

ANSWER = pb.Model(name="demo", version="7").SerializeToString()


def to_status(error: Exception) -> tuple[Any, ...]:
    """As `context.abort` takes it."""
    status = status_of(error)
    return status.code, status.error.message, status.trailer


class Script:
    """Answers Models.Get by a list of failures, then well."""

    def __init__(self, *failures: Any) -> None:
        self.failures = list(failures)
        self.calls = 0
        self.metadata: dict[str, Any] = {}  # of the last call

    def get(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        self.metadata = dict(context.invocation_metadata())
        if self.failures:
            code, details, trailer = self.failures.pop(0)
            context.set_trailing_metadata(trailer)
            context.abort(code, details)
        return ANSWER


@contextmanager
def scripted(script: Script) -> Iterator[DecoderClient]:
    get = grpc.unary_unary_rpc_method_handler(script.get)
    with (
        answering("logitsieve.v1.Models", Get=get) as address,
        DecoderClient(address, timeout_s=60) as client,
    ):
        yield client


def raised(script: Script) -> LogitsieveError:
    with scripted(script) as client, pytest.raises(LogitsieveError) as caught:
        client.model("demo")
    return caught.value


ERRORS = [
    InvalidRequest("k", 0, "an integer in 1..5"),
    InvalidRequest("hidden_states.data", "3 bytes", "rows x cols x 4 = 4 bytes"),
    InvalidKnob("knobs.probes", 65.0, "1 to 64"),
    ModelNotFound("model: no 'x' here", "model"),
    DeadlineExceeded("the deadline passed before computing"),
    Unimplemented("constraints: unimplemented", "constraints"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_it_was_raised_and_is_not_retried(error: LogitsieveError) -> None:
    script = Script(to_status(error))
    arrived = raised(script)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert getattr(arrived, "field", "") == getattr(error, "field", "")
    assert isinstance(arrived.__cause__, grpc.RpcError)
    assert script.calls == 1


@pytest.mark.parametrize("code", grpc.StatusCode)
def test_every_code_without_a_trailer_is_one_of_ours(code: grpc.StatusCode) -> None:
    if code is grpc.StatusCode.OK:
        return
    assert "told" in str(raised(Script(*[(code, "told", ())] * 4)))


def test_a_spoiled_trailer_leaves_the_status_and_a_text_cut_short_stays_as_it_is() -> None:
    error = pb.Error(code=3, field="k", message="k: got 0, allo")
    assert str(of_message(error)) == "k: got 0, allo"
    assert isinstance(of_message(pb.Error(code=99, message="elsewhere")), InternalError)
    trailer = (("logitsieve-error-bin", b"\xff\xff"),)
    assert str(raised(Script((grpc.StatusCode.NOT_FOUND, "gone", trailer)))) == "gone"
    unsent = grpc.StatusCode.INTERNAL, "Internal error from Core", ()
    assert type(raised(Script(unsent))) is Unavailable


def test_grpcs_own_refusal_of_a_large_message_and_an_incident() -> None:
    words = "SERVER: Received message larger than max (9 vs. 8)"
    error = raised(Script(*[(grpc.StatusCode.RESOURCE_EXHAUSTED, words, ())] * 4))
    assert isinstance(error, RequestTooLarge)
    assert words in str(error)
    assert set(CODES.values()) <= EXCEPTIONS.keys() | {grpc.StatusCode.INTERNAL}
    status = to_status(RuntimeError("defect"))
    arrived = raised(Script(status))
    assert isinstance(arrived, InternalError)
    assert arrived.incident
    assert arrived.incident in status[1]


@pytest.mark.parametrize("error", [Overloaded("full", 0.001), Unavailable("draining")])
def test_a_short_trouble_is_waited_out(error: LogitsieveError) -> None:
    for name in ("demo", "x" * (1 << 20)):
        script = Script(to_status(error), to_status(error))
        with scripted(script) as client:
            assert client.model(name).version == "7"
        assert script.calls == 3


def test_retries_do_not_multiply_an_outage() -> None:
    script, calls = Script(*[to_status(Overloaded("full", 0.001))] * 1000), 130
    with scripted(script) as client:
        for _ in range(calls):
            with pytest.raises(Overloaded):
                client.model("demo")
        before = script.calls
        with pytest.raises(Overloaded):
            client.model("demo")
    assert 500 <= before < 3.9 * calls
    assert script.calls == before + 1


def test_a_proxy_of_the_environment_sees_no_local_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with scripted(Script()) as client:
        assert client.model("demo").version == "7"


def test_a_call_says_how_long_it_may_take_in_all() -> None:
    script = Script()
    with scripted(script) as client:
        client.model("demo")
        assert script.metadata["logitsieve-timeout-ms"] == "60000"
        client.with_options(timeout_s=7.0001).model("demo")
        assert script.metadata["logitsieve-timeout-ms"] == "7001"

        async def awaited() -> None:
            async with AsyncDecoderClient(client.address, timeout_s=8) as other:
                await other.model("demo")

        asyncio.run(awaited())
    assert script.metadata["logitsieve-timeout-ms"] == "8000"


def test_a_call_may_have_metadata_of_its_own() -> None:
    script = Script()
    with scripted(script) as client:
        named = client.with_options(metadata=[("x-request-id", "one"), ("x-bin", b"\0")])
        named.with_options(metadata=[("tenant", "a b")]).model("demo")
        given = {"x-request-id": "one", "x-bin": b"\0", "tenant": "a b"}
        assert given.items() <= script.metadata.items()
        named.model("demo")
        assert "tenant" not in script.metadata
        client.model("demo")
        assert "x-request-id" not in script.metadata


@pytest.mark.parametrize(
    "pair", [("Upper", "v"), ("grpc-x", "v"), ("", "v"), ("k", "\n"), ("k", b"v"), ("k-bin", "v")]
)
def test_no_metadata(pair: tuple[str, str | bytes]) -> None:
    with DecoderClient("127.0.0.1:1") as client, refused("metadata"):
        client.with_options(metadata=[pair])


def test_options_of_the_channel_go_before_ours() -> None:
    script = Script(*[to_status(Unavailable("draining"))] * 4)
    with scripted(script) as client:
        alone = [("grpc.enable_retries", 0)]
        with DecoderClient(client.address, options=alone) as other, pytest.raises(Unavailable):
            other.model("demo")
    assert script.calls == 1


def test_address_and_token_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()
    with scripted(script) as client:
        monkeypatch.setenv("LOGITSIEVE_ADDRESS", client.address)
        monkeypatch.setenv("LOGITSIEVE_API_KEY", "of-the-environment")
        with DecoderClient() as other:
            other.model("demo")
        assert script.metadata["authorization"] == "Bearer of-the-environment"
        with DecoderClient(api_key="") as other:
            other.model("demo")
        assert "authorization" not in script.metadata
    monkeypatch.delenv("LOGITSIEVE_ADDRESS")
    with DecoderClient() as other:
        assert other.address == "localhost:50051"
    with refused("tls"):
        AdminClient("decoder.example:1")


def test_a_long_trouble_is_raised_and_no_pushback_goes_beyond_the_timeout() -> None:
    script = Script(*[to_status(Overloaded("full", 0.003))] * 9)
    with scripted(script) as client, pytest.raises(Overloaded) as caught:
        client.model("demo")
    assert script.calls == 4
    assert caught.value.retry_after_s == 0.003
    script = Script(*[to_status(Overloaded("full", 3600))] * 2)
    with scripted(script) as client:
        client.timeout_s = 0.5
        with pytest.raises((Overloaded, DeadlineExceeded)):
            client.model("demo")
    assert script.calls == 1


def hint(port: int, tls: Tls | None = None, kind: Any = DecoderClient) -> str:
    with kind(f"127.0.0.1:{port}", timeout_s=60, tls=tls) as client:
        call = client.models if kind is DecoderClient else partial(client.load, "demo", 1)
        with pytest.raises(LogitsieveError) as caught:
            call()
    assert isinstance(caught.value.__cause__, grpc.RpcError)
    return str(caught.value)


def test_an_error_without_a_server_says_what_to_do(tmp_path: Path) -> None:
    issuer = authority()
    pair, ca = signed_by(issuer), tmp_path / "ca.crt"
    ca.write_bytes(issuer.cert_pem)
    keys = [(pair.key_pem, pair.cert_pem)]
    server = grpc.server(ThreadPoolExecutor(1))
    plain = server.add_insecure_port("127.0.0.1:0")
    credentials = grpc.ssl_server_credentials(keys)
    secure = server.add_secure_port("127.0.0.1:0", credentials)
    credentials = grpc.ssl_server_credentials(keys, issuer.cert_pem, True)
    mutual = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    trusting = Tls(ca=ca)
    try:
        assert hint(1) == "nothing answers at 127.0.0.1:1: is `logitsieve serve` running there?"
        assert hint(1, trusting) == hint(1)
        assert "is that the admin port?" in hint(plain)
        assert "is that the admin port?" in hint(secure, trusting)
        assert "is that the public port?" in hint(plain, kind=AdminClient)
        assert hint(plain, trusting).endswith("does not speak TLS: connect without it")
        assert hint(secure).endswith("does it ask for TLS?")
        assert hint(secure, Tls()).endswith("is its authority in `tls.ca`?")
        assert hint(mutual, trusting).endswith("does it ask for a client's certificate?")
    finally:
        server.stop(None).wait()


def test_an_http_port_says_so() -> None:
    http = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    with http, ThreadPoolExecutor(1) as pool:
        pool.submit(http.serve_forever)
        try:
            assert hint(http.server_port).endswith("is that the metrics port?")
        finally:
            http.shutdown()


def test_an_address_that_is_silent_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "127.0.0.1:{1}".format(*server.getsockname())
        late = pytest.raises(DeadlineExceeded, match=f"^{address} did not answer in time$")
        with DecoderClient(address, timeout_s=0.1) as client, late:
            client.models()
