from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.server import ServeConfig
from tests.refusals import refused

COUNTS = ("threads", "max_rows", "max_k", "max_samples", "max_in_flight", "max_queue_rows")
SENSELESS: dict[str, list[Any]] = {
    **{name: [0] for name in (*COUNTS, "max_connection_calls", "max_connections", "max_streams")},
    "request_memory_mib": [0],
    "max_constraint_ids": [-1],
    "port": [-1],
    "http_port": [65536],
    "admin_port": [65536],
    "batch_delay_us": [-1, 201],
    "drain_s": [-0.1, float("nan")],
    "max_connection_age_s": [-1, float("nan"), float("inf")],
    "max_connection_age_grace_s": [604_801],
    "verify": ["never"],
    "shadow_share": [-0.1, float("nan")],
    "shadow_cpu": [1.1],
    "log_format": ["xml"],
    "log_level": ["loud"],
    "device": ["gpu", "cuda:", ""],
}


@pytest.mark.parametrize("option", SENSELESS)
def test_senseless_options(option: str) -> None:
    for value in SENSELESS[option]:
        with refused(option):
            ServeConfig(**{option: value})


def test_every_option_has_its_help_and_a_number_its_range() -> None:
    assert all(field.metadata["help"] for field in fields(ServeConfig))
    numbers = [field for field in fields(ServeConfig) if field.type in (int, float)]
    assert numbers
    assert all(field.metadata["low"] <= field.default for field in numbers)


def test_ports_are_on_loopback_by_default_and_there_alone_the_console() -> None:
    assert ServeConfig().host == ServeConfig().admin_host == "127.0.0.1"
    assert ServeConfig().serves_console
    assert not ServeConfig(console=False).serves_console
    assert not ServeConfig(host="0.0.0.0").serves_console
    with pytest.raises(InvalidRequest):
        ServeConfig(host="0.0.0.0", console=True, api_key_file=Path("t"))
    tls: dict[str, Any] = {"tls_cert": Path("c"), "tls_key": Path("k")}
    assert ServeConfig(host="0.0.0.0", console=True, api_key_file=Path("t"), **tls).serves_console


def test_the_message_limit_is_all_that_a_request_may_hold() -> None:
    config = ServeConfig(max_rows=10, max_k=7, max_constraint_ids=50)
    assert config.max_message_bytes(100) == 10 * (100 * 4 + 7 * 4 + 32) + 50 * 8 + 65536


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"console": True, "host": "0.0.0.0"}, "console"),
        ({"tls_cert": Path("c")}, "tls_key"),
        ({"tls_key": Path("k")}, "tls_cert"),
        ({"tls_client_ca": Path("a")}, "tls_client_ca"),
        ({"api_key_file": Path("t"), "host": "0.0.0.0"}, "host"),
        ({"api_key_file": Path("t"), "host": "::"}, "host"),
        ({"api_key_file": Path("t"), "host": "example.org"}, "host"),
        ({"api_key_file": Path("t"), "admin_host": "10.0.0.1"}, "admin_host"),
        ({"admin_host": "0.0.0.0"}, "admin_host"),
        ({"admin_host": "0.0.0.0", "tls_cert": Path("c"), "tls_key": Path("k")}, "admin_host"),
        ({"api_key_file": Path("t")}, ""),
        ({"api_key_file": Path("t"), "host": "localhost", "admin_host": "::1"}, ""),
        (
            {"api_key_file": Path("t"), "host": "::", "tls_cert": Path("c"), "tls_key": Path("k")},
            "",
        ),
        ({"api_key_file": Path("t"), "admin": False, "admin_host": "0.0.0.0"}, ""),
        ({"host": "0.0.0.0"}, ""),
    ],
)
def test_options_that_would_give_secrets_away(options: dict[str, Any], field: str) -> None:
    with refused(field) if field else nullcontext():
        ServeConfig(**options)
