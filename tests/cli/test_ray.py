import pytest

from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--replicas", 0), "--replicas"),
        (("--cpus", -1), "--cpus"),
        (("--patience-s", 0), "--patience-s"),
        (("--missing", "guess"), "--missing"),
        (("--port", 70000), "--port"),
    ],
)
def test_wrong_options_are_named(run: Run, options: tuple[object, ...], reason: str) -> None:
    result = run("ray", "up", *options)
    assert result.exit_code == 2
    assert reason in result.stderr


def test_there_are_three_actions(run: Run) -> None:
    result = run("ray", "restart")
    assert result.exit_code == 2
    assert "down" in result.stderr
