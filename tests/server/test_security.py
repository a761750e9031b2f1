import logging
import ssl
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from cryptography import x509

from logitsieve.api.errors import InvalidRequest, PermissionDenied, Unauthenticated
from logitsieve.server import ServeConfig
from logitsieve.server.security import (
    ADMIN,
    READ,
    ApiKeys,
    ReloadingFile,
    certificates,
    http_tls,
    read_api_keys,
    read_pems,
)
from tests.refusals import refused
from tests.server.materials import Pair, signed_by, write_api_keys

FIRST, SECOND, ROOT = "first-token-of-readers", "second.token~of+readers==", "token-of-the-admin"


# What str.splitlines splits at but "\n": inside a comment none of them ends it.
NO_NEWLINES = ("\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
COMMENTS = {
    # The UTF-8 of these letters ends in the byte 0x85, which is a line's end in latin-1.
    "Å": f"# disabled by \u00c5 admin:{ROOT}\n".encode(),
    "Å, then a line": f"# \u00c5admin:{ROOT}\n".encode(),
    "Cyrillic": f"# \u0441\u0442\u0430\u0440\u044b\u0445:\u0445admin:{ROOT}\n".encode(),
    "ą": f"# wy\u0142\u0105czony \u0105 admin:{ROOT}\n".encode(),
    "latin-1": f"# caf\u00e9 \x85admin:{ROOT}\n".encode("latin-1"),
    **{repr(end): f"# off {end}admin:{ROOT}\n".encode() for end in NO_NEWLINES},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = f"# who may call\n\nread:{FIRST}\n  read : {SECOND} \nadmin:{ROOT}\n"
    return write_api_keys(tmp_path, lines)


def test_each_token_reads_and_the_admins_alone_changes_what_is_served(file: Path) -> None:
    api_keys = ApiKeys(file)
    assert all(FIRST.encode() not in digest for digest, _ in read_api_keys(file))
    file.unlink()  # a check reads no file: a mount that hangs must not stop the event loop
    for api_key in (FIRST, SECOND, ROOT):
        api_keys.check(f"Bearer {api_key}", READ)
        api_keys.check(f"bearer {api_key}", READ)
    api_keys.check(f"Bearer {ROOT}", ADMIN)
    with pytest.raises(PermissionDenied, match="scope admin"):
        api_keys.check(f"Bearer {FIRST}", ADMIN)


@pytest.mark.parametrize(
    "header",
    [
        *("", "Bearer", "Bearer ", FIRST, f"Basic {FIRST}", f"Bearer {FIRST[:-1]}"),
        *(f"Bearer {FIRST}x", f"Bearer {FIRST} {FIRST}", "Bearer \u65e5\u672c"),
    ],
)
def test_what_is_no_key(file: Path, header: str) -> None:
    with pytest.raises(Unauthenticated) as caught:
        ApiKeys(file).check(header, READ)
    assert FIRST not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        *("", "# nothing\n", FIRST, f"write:{FIRST}", "read:too-short", "read:"),
        *(f"read:{FIRST} and more", f"read:{FIRST}\nread\n", "read:" + 8 * "\u65e5"),
    ],
)
def test_api_key_files_that_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ApiKeys(write_api_keys(tmp_path, text))
    assert caught.value.field == "api_key_file"
    assert FIRST not in str(caught.value)
    with refused("api_key_file"):
        ApiKeys(tmp_path / "absent")


@pytest.mark.parametrize("comment", COMMENTS.values(), ids=COMMENTS)
def test_a_comment_holds_no_token_and_ends_one_at_once(
    file: Path, comment: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    api_keys = ApiKeys(file)
    api_keys.check(f"Bearer {ROOT}", ADMIN)
    text = comment + f"read:{SECOND}\r\n".encode()
    write_api_keys(file.parent, text)
    api_keys.renew()
    for read in (api_keys, ApiKeys(file)):
        read.check(f"Bearer {SECOND}", READ)
        with pytest.raises(Unauthenticated):
            read.check(f"Bearer {ROOT}", READ)
    assert "last good" not in caplog.text
    with pytest.raises(InvalidRequest, match="none in"):
        read_api_keys(write_api_keys(file.parent, comment))


def test_a_byte_order_mark_begins_no_line(tmp_path: Path) -> None:
    assert len(read_api_keys(write_api_keys(tmp_path, f"\ufeffread:{FIRST}\n"))) == 1


@pytest.mark.parametrize("end", NO_NEWLINES)
def test_a_line_holds_one_key(tmp_path: Path, end: str) -> None:
    with pytest.raises(InvalidRequest, match="api_keys:2"):
        read_api_keys(write_api_keys(tmp_path, f"#\nread:{FIRST}{end}admin:{ROOT}\n"))


@pytest.mark.parametrize("broken", ["", f"write:{SECOND}\n", None])
def test_a_broken_file_changes_nothing_and_is_logged_once(
    file: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    api_keys = ApiKeys(file)
    if broken is None:
        file.unlink()
    else:
        file.write_text(broken)
    for _ in range(3):
        assert not api_keys.renew()
        api_keys.check(f"Bearer {FIRST}", READ)
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert SECOND not in caplog.text
    write_api_keys(file.parent, f"read:{SECOND}\n")
    assert api_keys.renew()
    api_keys.check(f"Bearer {SECOND}", READ)
    with pytest.raises(Unauthenticated):
        api_keys.check(f"Bearer {FIRST}", READ)


@pytest.mark.parametrize(
    ("mode", "said"), [(0o600, False), (0o640, False), (0o644, True), (0o620, True), (0o601, True)]
)
def test_a_file_that_others_may_read(
    tmp_path: Path, ca: Pair, mode: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    api_keys = write_api_keys(tmp_path, f"read:{FIRST}\n", mode)
    ApiKeys(api_keys)
    cert, key = signed_by(ca).write(tmp_path)
    key.chmod(mode)
    clients, _ = ca.write(tmp_path, "ca")
    for known in (None, clients):
        config = ServeConfig(tls_cert=cert, tls_key=key, tls_client_ca=known)
        assert certificates(config) is not None
    for file in (api_keys, key):
        assert (f"others may use it: chmod o-rwx,g-w {file}" in caplog.text) == said
    assert certificates(ServeConfig()) is None


def shown(listening: ssl.SSLContext) -> int:
    """The serial number of the certificate that a handshake presents."""
    asking = ssl.create_default_context()
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = listening.wrap_bio(to_server, to_client, server_side=True)
    client = asking.wrap_bio(to_client, to_server)
    for side in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    certificate = client.getpeercert(binary_form=True)
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate).serial_number


def test_a_handshake_of_http_has_the_last_pair_and_reads_no_file(tmp_path: Path, ca: Pair) -> None:
    first, second = signed_by(ca), signed_by(ca)
    tls = http_tls(*first.write(tmp_path))
    assert tls is not None
    listening = tls.value
    second.write(tmp_path)
    assert shown(listening) == first.serial
    assert tls.renew()
    assert shown(listening) == second.serial
    assert http_tls(None, None) is None


@pytest.mark.parametrize("broken", ["cert", "key", "other key", "absent", "client_ca"])
def test_certificate_files_that_are_refused(tmp_path: Path, ca: Pair, broken: str) -> None:
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
    with refused("tls_client_ca" if broken == "client_ca" else "tls_cert"):
        certificates(ServeConfig(tls_cert=cert, tls_key=key, tls_client_ca=clients))


def test_a_pair_is_read_whole(tmp_path: Path, ca: Pair, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = signed_by(ca).write(tmp_path)
    watched = ReloadingFile("tls_cert", lambda: read_pems(cert, key, None), "files", key, cert)
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

    watched = ReloadingFile("secret", read, "a file", file)
    file.write_text("second, half")
    during.append("second, whole")
    assert not watched.renew()
    assert watched.value == "first"
    assert watched.renew()
    assert watched.value == "second, whole"


def test_a_file_that_vanishes_while_it_is_read_again_leaves_the_last_good_one() -> None:
    class Vanishing:
        stats = 0

        def stat(self) -> SimpleNamespace:
            self.stats += 1
            if self.stats == 5:  # after the two that compare
                raise FileNotFoundError
            when = 0 if self.stats <= 2 else 1
            return SimpleNamespace(st_ino=1, st_size=1, st_mtime_ns=when, st_mode=0o600)

    values = iter("abc")
    file = ReloadingFile("api_key_file", lambda: next(values), "a file", cast(Path, Vanishing()))
    assert not file.renew()
    assert file.value == "a"
