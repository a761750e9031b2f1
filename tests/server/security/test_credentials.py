from __future__ import annotations

from pathlib import Path

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.server import ServeConfig
from logitsieve.server.security.secrets import ReloadingFile, certificates, read_pems
from tests.server.certificates import Pair, authority, signed_by


@pytest.fixture(scope="module")
def ca() -> Pair:
    return authority()


def test_without_a_certificate_there_is_no_tls() -> None:
    assert certificates(ServeConfig()) is None


def test_with_one_there_is(tmp_path: Path, ca: Pair) -> None:
    cert, key = signed_by(ca).write(tmp_path)
    assert certificates(ServeConfig(tls_cert=cert, tls_key=key)) is not None
    clients, _ = ca.write(tmp_path, "ca")
    config = ServeConfig(tls_cert=cert, tls_key=key, tls_client_ca=clients)
    assert certificates(config) is not None


@pytest.mark.parametrize("broken", ["cert", "key", "other key", "absent", "client_ca"])
def test_files_that_are_refused(tmp_path: Path, ca: Pair, broken: str) -> None:
    cert, key = signed_by(ca).write(tmp_path)
    clients, _ = ca.write(tmp_path, "ca")
    match broken:
        case "cert":
            cert.write_text("no certificate")
        case "key":
            key.write_bytes(b"")
        case "other key":
            key.write_bytes(ca.key_pem)
        case "absent":
            key.unlink()
        case "client_ca":
            clients.write_text("nobody")
    with pytest.raises(InvalidRequest) as caught:
        certificates(ServeConfig(tls_cert=cert, tls_key=key, tls_client_ca=clients))
    assert caught.value.field == ("tls_client_ca" if broken == "client_ca" else "tls_cert")


def test_a_pair_is_renewed_when_both_files_fit(
    tmp_path: Path, ca: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = signed_by(ca).write(tmp_path)
    watched = ReloadingFile("tls_cert", lambda: read_pems(cert, key, None), key, (cert,))
    first, second = watched.value, signed_by(ca)
    assert not watched.renew()
    cert.write_bytes(second.cert_pem)
    assert not watched.renew()
    assert not watched.renew()
    assert watched.value is first
    [record] = caplog.records
    assert "the last good one stays" in record.message
    key.write_bytes(second.key_pem)
    assert watched.renew()
    assert watched.value is not first
    assert not watched.renew()


def test_files_that_change_while_they_are_read_are_left_for_the_next_time(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("first")
    file.chmod(0o600)
    during: list[str] = []

    def read() -> str:
        found = file.read_text()
        if during:
            file.write_text(during.pop())
        return found

    watched = ReloadingFile("secret", read, file)
    file.write_text("second, half")
    during.append("second, whole")
    assert not watched.renew()
    assert watched.value == "first"
    assert watched.renew()
    assert watched.value == "second, whole"


def test_a_key_that_others_may_read(
    tmp_path: Path, ca: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = signed_by(ca).write(tmp_path)
    key.chmod(0o644)
    certificates(ServeConfig(tls_cert=cert, tls_key=key))
    assert f"others may use it: chmod o-rwx,g-w {key}" in caplog.text


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tls_cert": Path("c")}, "tls_key"),
        ({"tls_key": Path("k")}, "tls_cert"),
        ({"tls_client_ca": Path("a")}, "tls_client_ca"),
        ({"tokens": Path("t"), "host": "0.0.0.0"}, "host"),
        ({"tokens": Path("t"), "host": "::"}, "host"),
        ({"tokens": Path("t"), "host": "example.org"}, "host"),
        ({"tokens": Path("t"), "admin_host": "10.0.0.1"}, "admin_host"),
        ({"admin_host": "0.0.0.0"}, "admin_host"),
        ({"admin_host": "0.0.0.0", "tls_cert": Path("c"), "tls_key": Path("k")}, "admin_host"),
    ],
)
def test_options_that_would_give_secrets_away(options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ServeConfig(**options)  # type: ignore[arg-type]  # options of several types
    assert caught.value.field == field


@pytest.mark.parametrize(
    "options",
    [
        {"tokens": Path("t")},
        {"tokens": Path("t"), "host": "localhost", "admin_host": "::1"},
        {"tokens": Path("t"), "host": "0.0.0.0", "tls_cert": Path("c"), "tls_key": Path("k")},
        {"tokens": Path("t"), "admin": False, "admin_host": "0.0.0.0"},
        {"host": "0.0.0.0"},
    ],
)
def test_options_that_do_not(options: dict[str, object]) -> None:
    ServeConfig(**options)  # type: ignore[arg-type]  # options of several types
