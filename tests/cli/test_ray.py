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
    run("ray", "up", *options, code=2, says=reason)


def test_there_are_three_actions(run: Run) -> None:
    run("ray", "restart", code=2, says="down")
