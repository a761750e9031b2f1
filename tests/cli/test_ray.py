from tests.cli.conftest import Run


def test_there_are_three_actions(run: Run) -> None:
    run("ray", "restart", code=2, says="down")
