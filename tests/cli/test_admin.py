"""What the command refuses; that it does its work is tested beside `serve`."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("load", "demo"), "model: got demo, allowed: name@version"),
        (("unload", "demo@two"), "model: got demo@two"),
        (("alias", "demo@", "--alias", "a"), "model: got demo@"),
        (("unload", "demo@2", "--drain-s", "-1"), "drain_s: got -1"),
        (("load", "demo@2", "--timeout-s", "0"), "timeout_s: got 0"),
        (("load", "demo@2", "--token-file", "nowhere"), "token_file: got nowhere"),
        (("remove", "demo@2"), "remove"),
    ],
)
def test_wrong_options(run: Run, options: tuple[str, ...], reason: str) -> None:
    result = run("admin", *options)
    assert result.exit_code == 2
    assert reason in result.stderr


def test_nobody_listens(run: Run) -> None:
    result = run("admin", "load", "demo@1", "--address", "127.0.0.1:1")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
