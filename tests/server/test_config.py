from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.server import ServeConfig


def test_every_option_has_its_help() -> None:
    assert all(field.metadata["help"] for field in fields(ServeConfig))


def test_every_number_has_its_range() -> None:
    numbers = [field for field in fields(ServeConfig) if field.type in ("int", "float")]
    assert numbers
    assert all(field.metadata["low"] <= field.default for field in numbers)


def test_binds_are_loopback_by_default() -> None:
    assert ServeConfig().host == ServeConfig().admin_host == "127.0.0.1"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("port", -1),
        ("metrics_port", 65536),
        ("threads", 0),
        ("max_rows", 0),
        ("max_k", 0),
        ("max_samples", 0),
        ("max_constraint_ids", -1),
        ("max_in_flight", 0),
        ("request_memory_mb", 0),
        ("max_connection_calls", 0),
        ("max_streams", 0),
        ("drain_s", -0.1),
        ("drain_s", float("nan")),
        ("connection_age_s", -1),
        ("connection_age_s", float("nan")),
        ("connection_age_s", float("inf")),
        ("connection_grace_s", 604_801),
        ("verify", "never"),
        ("admin_port", 65536),
        ("max_queue_rows", 0),
        ("batch_delay_us", -1),
        ("batch_delay_us", 201),
        ("shadow_share", -0.1),
        ("shadow_share", float("nan")),
        ("shadow_cpu", 1.1),
        ("log_format", "xml"),
        ("log_level", "loud"),
        ("device", "gpu"),
        ("device", "cuda:"),
        ("device", ""),
    ],
)
def test_senseless_options(option: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ServeConfig(**{option: value})
    assert caught.value.field == option


def test_the_console_is_on_by_default_on_loopback_alone() -> None:
    assert ServeConfig().serves_console
    assert not ServeConfig(console=False).serves_console
    assert not ServeConfig(host="0.0.0.0").serves_console


def test_the_console_is_shown_to_others_only_with_tokens_and_tls() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ServeConfig(host="0.0.0.0", console=True)
    assert caught.value.field == "console"
    with pytest.raises(InvalidRequest):
        ServeConfig(host="0.0.0.0", console=True, tokens=Path("t"))
    config = ServeConfig(
        host="0.0.0.0", console=True, tokens=Path("t"), tls_cert=Path("c"), tls_key=Path("k")
    )
    assert config.serves_console


CERTIFICATE, KEY, AUTHORITIES = Path("a.crt"), Path("a.key"), Path("ca.crt")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tls_cert": CERTIFICATE}, "tls_key"),
        ({"tls_key": KEY}, "tls_cert"),
        ({"tls_client_ca": AUTHORITIES}, "tls_client_ca"),
    ],
)
def test_files_of_tls_that_go_together(options: dict[str, Path], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ServeConfig(**options)  # type: ignore[arg-type]  # only paths are among them
    assert caught.value.field == field


def test_the_message_limit_is_all_that_a_request_may_hold() -> None:
    config = ServeConfig(max_rows=10, max_k=7, max_constraint_ids=50)
    assert config.max_message_bytes(100) == 10 * (100 * 4 + 7 * 4 + 32) + 50 * 8 + 65536


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
