from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.client import DecoderClient, Tls
from logitsieve.client.connection import to_metadata
from tests.refusals import refused

TOKEN = "a-token-of-readers"


HERE = "localhost:50051 127.0.0.1:1 [::1]:1 dns:///localhost:1 ipv4:127.0.0.1:1,127.0.0.1:2"
ELSEWHERE = "example.org:50051 10.0.0.1:1 ipv4:127.0.0.1:1,10.0.0.1:2 dns:///example.org:1"


@pytest.mark.parametrize("address", [*HERE.split(), "ipv6:[::1]:1", "unix:/run/socket"])
def test_a_token_may_stay_on_this_machine(address: str) -> None:
    assert to_metadata(TOKEN, address, None) == (("authorization", f"Bearer {TOKEN}"),)


@pytest.mark.parametrize(
    "address", [*ELSEWHERE.split(), "dns://8.8.8.8/localhost:1", "localhost.example.org:1"]
)
def test_a_token_never_leaves_it_in_the_clear(address: str) -> None:
    with refused("tls"):
        DecoderClient(address, token=TOKEN)
    assert to_metadata(TOKEN, address, Tls())
    assert to_metadata("", address, None) == ()


@pytest.mark.parametrize("token", ["two words", "new\nline", "\u65e5\u672c"])
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DecoderClient("localhost:1", token=token)
    assert caught.value.field == "token"
    assert token not in str(caught.value)


@pytest.mark.parametrize(
    ("tls", "field"),
    [
        (Tls(ca="absent"), "tls.ca"),
        (Tls(cert=Path("absent")), "tls.key"),
        (Tls(key="absent"), "tls.cert"),
        (Tls(cert="absent", key="absent"), "tls.key"),
    ],
)
def test_files_that_are_not_there(tls: Tls, field: str) -> None:
    with refused(field):
        DecoderClient("localhost:1", tls=tls)


def test_a_timeout_is_a_positive_number_of_seconds_and_a_list_is_no_address() -> None:
    wrong: Any
    for wrong in (-1, 0, float("nan"), float("inf"), 1e12, 3601, True, "5", None):
        with refused("timeout_s", "at most 3600"):
            DecoderClient("127.0.0.1:1", timeout_s=wrong)
    for timeout_s in (0.01, 3600, np.float32(2)):
        with DecoderClient("127.0.0.1:1", timeout_s=timeout_s) as client:  # type: ignore[arg-type]
            assert client.timeout_s == pytest.approx(float(timeout_s))
    with refused("address", "several as ipv4:"):
        DecoderClient(["10.0.0.1:1", "10.0.0.2:2"])  # type: ignore[arg-type]
