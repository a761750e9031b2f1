"""TLS, client certificates, API keys and reflection, over real ports."""

import socket
import ssl
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2

from logitsieve.api.errors import ServiceError, Unauthenticated, Unavailable
from logitsieve.client import DecoderClient, Tls
from logitsieve.server import create_server
from tests.refusals import refused
from tests.server.conftest import Serve
from tests.server.materials import Pair, authority, signed_by, write_api_keys
from tests.server.running import WAIT_S, Loop, Running, config_for, requests_total
from tests.synthetic import make_hidden

READER, ADMIN = "a-token-of-readers", "the-token-of-the-admin"
HIDDEN = make_hidden(2)


@pytest.fixture
def tls(tmp_path: Path, ca: Pair) -> dict[str, Path]:
    cert, key = signed_by(ca).write(tmp_path)
    return {"tls_cert": cert, "tls_key": key}


@pytest.fixture
def trusted(tmp_path: Path, ca: Pair) -> Path:
    return ca.write(tmp_path, "ca")[0]


@pytest.fixture
def api_keys(tmp_path: Path) -> Path:
    return write_api_keys(tmp_path, f"read:{READER}\nadmin:{ADMIN}\n")


def client(run: Running, **options: Any) -> DecoderClient:
    return DecoderClient(run.address, timeout_s=WAIT_S, **options)


def hasty(run: Running, **options: Any) -> DecoderClient:
    """One that is not to be answered: it is retried until its time is up."""
    return DecoderClient(run.address, timeout_s=2.0, **options)


def presented(run: Running) -> int:
    """The serial number of the certificate that new connections see on both ports."""
    serial = presented_at(run.server.port)
    assert presented_at(run.server.admin_port) == serial
    return serial


def presented_at(port: int) -> int:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection,
        context.wrap_socket(connection) as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def test_certificates_are_renewed_while_it_serves(
    serve: Serve, ca: Pair, trusted: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = signed_by(ca), signed_by(ca), signed_by(ca)
    cert, key = first.write(tmp_path)
    with serve(tls_cert=cert, tls_key=key) as run:
        with client(run, tls=Tls(ca=trusted)) as old:
            answered = old.topk(HIDDEN, 3, model="demo").ids
            assert presented(run) == first.serial
            second.write(tmp_path)
            assert presented(run) == second.serial
            key.write_text("broken")
            assert presented(run) == second.serial
            assert "the last good one stays" in caplog.text
            assert (old.topk(HIDDEN, 3, model="demo").ids == answered).all()
            third.write(tmp_path)
            with client(run, tls=Tls(ca=trusted)) as new:
                assert (new.topk(HIDDEN, 3, model="demo").ids == answered).all()
            assert presented(run) == third.serial
        with hasty(run) as plain, pytest.raises(ServiceError):
            plain.models()
        unknown, _ = authority("another").write(tmp_path, "unknown")
        with hasty(run, tls=Tls(ca=unknown)) as suspicious, pytest.raises(Unavailable):
            suspicious.models()


def test_the_console_beyond_loopback_speaks_tls_and_asks_for_a_key(
    serve: Serve, ca: Pair, trusted: Path, tls: dict[str, Path], api_keys: Path, tmp_path: Path
) -> None:
    with serve(console=True, host="0.0.0.0", api_key_file=api_keys, **tls) as run:
        port = run.server.http_port
        context = ssl.create_default_context(cafile=str(trusted))
        for headers, status in (({}, 401), ({"Authorization": f"Bearer {ADMIN}"}, 200)):
            url = f"https://127.0.0.1:{port}/api/overview"
            reply = httpx2.get(url, headers=headers, verify=context, timeout=WAIT_S)
            assert reply.status_code == status
        second = signed_by(ca)
        second.write(tmp_path)
        while presented_at(port) != second.serial:  # read again within a second
            pass


def test_the_console_beyond_loopback_asks_for_a_certificate_too(
    serve: Serve, ca: Pair, trusted: Path, tls: dict[str, Path], api_keys: Path, tmp_path: Path
) -> None:
    """Metrics and probes, whose clients have none, do not."""
    own = {"tls_client_ca": trusted, "api_key_file": api_keys, **tls}
    known = signed_by(ca, "client").write(tmp_path, "client")
    with serve(console=True, host="0.0.0.0", **own) as run:
        for shown, page, status in (
            (None, "api/overview", 403),
            (known, "api/overview", 200),
            (None, "metrics", 200),
            (None, "healthz", 200),
        ):
            context = ssl.create_default_context(cafile=str(trusted))
            if shown is not None:
                context.load_cert_chain(*shown)
            url = f"https://127.0.0.1:{run.server.http_port}/{page}"
            headers = {"Authorization": f"Bearer {ADMIN}"}
            reply = httpx2.get(url, headers=headers, verify=context, timeout=WAIT_S)
            assert reply.status_code == status, (page, shown)


def test_clients_show_certificates(
    serve: Serve, ca: Pair, trusted: Path, tls: dict[str, Path], tmp_path: Path
) -> None:
    known = signed_by(ca, "client").write(tmp_path, "client")
    stranger = signed_by(authority("another"), "stranger").write(tmp_path, "stranger")
    with serve(tls_client_ca=trusted, **tls) as run:
        with client(run, tls=Tls(ca=trusted, cert=known[0], key=known[1])) as welcome:
            assert welcome.topk(HIDDEN, 3, model="demo").ids.shape == (2, 3)
        for shown in (Tls(ca=trusted), Tls(ca=trusted, cert=stranger[0], key=stranger[1])):
            with hasty(run, tls=shown) as refused, pytest.raises(Unavailable):
                refused.models()


def reflect(channel: grpc.Channel, metadata: tuple[tuple[str, str], ...]) -> set[str]:
    """The services that both versions of reflection name, in equal bytes."""
    request = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    names = []
    for version in ("v1alpha", "v1"):
        method = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        info = channel.stream_stream(method)
        [message] = info(iter([request]), timeout=WAIT_S, metadata=metadata)
        reply = reflection_pb2.ServerReflectionResponse.FromString(message)
        names.append({service.name for service in reply.list_services_response.service})
    assert names[0] == names[1]
    return names[0]


def code_of(channel: grpc.Channel, method: str, api_key: str = "", message: bytes = b"") -> str:
    metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
    call = channel.unary_unary(method).future(message, timeout=WAIT_S, metadata=metadata)
    return str(call.code().name)


def test_api_keys_are_asked_for_by_every_rpc_but_health(serve: Serve, api_keys: Path) -> None:
    with serve(api_key_file=api_keys, reflection=True) as run:
        with client(run, api_key=READER) as reader, reader.stream() as stream:
            answered = reader.topk(HIDDEN, 3, model="demo").ids
            assert (stream.topk(HIDDEN, 3, model="demo").ids == answered).all()
            assert reader.models()
        with client(run, api_key=ADMIN) as admin:
            assert admin.models()
        for api_key in ("", READER[:-1], "another-token-of-readers"):
            with client(run, api_key=api_key) as stranger:
                with pytest.raises(Unauthenticated) as caught:
                    stranger.topk(HIDDEN, 3, model="demo")
                assert caught.value.field == "authorization"
                with pytest.raises(Unauthenticated):
                    stranger.models()
                # Unavailable where the stream has been refused before it is used.
                with stranger.stream() as stream, pytest.raises((Unauthenticated, Unavailable)):
                    stream.topk(HIDDEN, 3, model="demo")
        with grpc.insecure_channel(run.address) as channel:
            check = HealthStub(channel).Check
            assert check(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status == 1
            assert code_of(channel, "/logitsieve.v1.Models/Made-Up") == "UNAUTHENTICATED"
            assert code_of(channel, "/logitsieve.v1.Models/Made-Up", READER) == "UNIMPLEMENTED"
            with pytest.raises(grpc.RpcError):
                reflect(channel, ())
            services = reflect(channel, (("authorization", f"Bearer {READER}"),))
            assert {"logitsieve.v1.Decoder", "logitsieve.v1.Models"} <= services
        with grpc.insecure_channel(f"127.0.0.1:{run.server.admin_port}") as channel:
            method = "/logitsieve.v1.Admin/Load"
            assert code_of(channel, method) == "UNAUTHENTICATED"
            assert code_of(channel, method, READER) == "PERMISSION_DENIED"
            assert code_of(channel, method, ADMIN, b"\xff") == "INVALID_ARGUMENT"
        text = run.server.metrics.text().decode()
        for rpc in ("TopK", "unknown"):
            assert requests_total(rpc, "unknown", "UNAUTHENTICATED") in text
        assert "Made-Up" not in text


def test_reflection_is_off_and_metadata_is_bounded(serve: Serve) -> None:
    with serve() as run, grpc.insecure_channel(run.address) as channel:
        with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
            reflect(channel, ())
        method = "/logitsieve.v1.Models/List"
        assert code_of(channel, method, "x" * 1000) == "OK"
        assert code_of(channel, method, "x" * 17_000) == "RESOURCE_EXHAUSTED"


def test_bad_files_are_said_first(loop: Loop, models: Path, tls: dict[str, Path]) -> None:
    server = create_server(config_for(models, **tls | {"tls_key": tls["tls_cert"]}))
    with refused("tls_cert"):
        loop.run(server.start())
    loop.run(server.stop())
    assert server.repository.versions() == []


def test_who_listens_beyond_this_machine_is_warned(
    serve: Serve, tls: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    with serve(host="0.0.0.0"):
        pass
    assert caplog.text.count("no TLS and no API keys: whoever reaches it may call") == 1
    caplog.clear()
    for more in ({}, {"tls_client_ca": tls["tls_cert"]}):
        with serve(host="0.0.0.0", **tls | more):
            pass
    assert caplog.text.count("whoever reaches it may call") == 1
    assert ": no API keys: whoever" in caplog.text
