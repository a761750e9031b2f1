from pathlib import Path

from tests.cli.conftest import Run


def test_serve_with_a_file_of_options(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('model_repository = "nowhere"\nthreads = 2\nreflection = true\n')
    run("serve", "--config", file, code=2, says="model_repository: got nowhere")
    other = ("--model-repository", "elsewhere")
    run("serve", "--config", file, *other, code=2, says="model_repository: got elsewhere")
    file.write_text("max_rowz = 2\n")
    result = run("serve", "--config", file, code=2, says="max_rowz: got an option that is unknown")
    assert "max_rows" in result.stderr
    file.write_text("threads = 0\n")
    run("serve", "--config", file, code=2, says="threads: got 0")
