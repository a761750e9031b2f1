from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--models", "nowhere"], "models: got nowhere"),
        (["--port", 65536], "--port"),
        (["--threads", 0], "--threads"),
        (["--verify", "no"], "--verify"),
    ],
)
def test_serve_with_wrong_options(run: Run, options: list[object], reason: str) -> None:
    result = run("serve", *options)
    assert result.exit_code == 2
    assert reason in result.stderr


def test_serve_with_a_file_of_options(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('models = "nowhere"\nthreads = 2\nreflection = true\n')
    result = run("serve", "--config", file)
    assert (result.exit_code, "models: got nowhere" in result.stderr) == (2, True)
    result = run("serve", "--config", file, "--models", "elsewhere")
    assert (result.exit_code, "models: got elsewhere" in result.stderr) == (2, True)
    file.write_text("max_rowz = 2\n")
    result = run("serve", "--config", file)
    assert result.exit_code == 2
    assert "max_rowz: got an option that is unknown" in result.stderr
    assert "max_rows" in result.stderr
    file.write_text("threads = 0\n")
    assert "threads: got 0" in run("serve", "--config", file).stderr
