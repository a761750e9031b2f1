from pathlib import Path
from typing import Any

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.server_options import ServerOptions
from logitsieve.client import AdminClient


class Received:
    """Stands for a client, and keeps what it is made of."""

    def __init__(self, address: str, **options: Any) -> None:
        self.address, self.options = address, options


def opened(**options: Any) -> Any:
    made: type[AdminClient] = Received  # type: ignore[assignment]
    return ServerOptions(**options).open(made)


def test_a_client_is_opened_with_what_the_options_say(tmp_path: Path) -> None:
    client = opened(address="server:1")
    assert client.address == "server:1"
    assert client.options == {"timeout_s": 5.0, "tls": None, "token": None}
    assert opened(tls=True).options["tls"].ca is None
    (tmp_path / "token").write_text("secret\n")
    assert opened(token_file=tmp_path / "token").options["token"] == "secret"
    (tmp_path / "token").write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match=r"token_file: got .*allowed: a file with a token"):
        opened(token_file=tmp_path / "token")


@pytest.mark.parametrize("name", ["tls_ca", "tls_cert", "tls_key"])
def test_a_file_of_tls_asks_for_it(name: str) -> None:
    tls = opened(**{name: Path("file.pem")}).options["tls"]
    assert getattr(tls, name.removeprefix("tls_")) == Path("file.pem")
