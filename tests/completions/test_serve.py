"""The process of the endpoint: its port, its API keys, its end."""

import signal
from contextlib import AbstractContextManager
from functools import partial
from itertools import product
from pathlib import Path
from subprocess import Popen
from time import sleep

import pytest

from logitsieve.completions import CompletionsConfig
from logitsieve.completions.serve import Port
from tests.completions import fake_engine
from tests.completions.conftest import NAME, Client
from tests.server.materials import write_api_keys
from tests.server.running import Loop, process, said_by

OLD, NEW, CONSOLE = "a-token-of-readers", "another-one-of-readers", "console-token-0123"
SIGNALS = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
BY_DEFAULT = ("stubborn", signal.SIGHUP), ("loading", signal.SIGTERM)
SERVE = """
import sys
from logitsieve.completions import CompletionsConfig
from logitsieve.completions.serve import serve
from tests.completions import fake_engine
if __name__ == "__main__":
    config = CompletionsConfig(port=0, drain_s=0.0)
    serve(config, "fake", getattr(fake_engine, sys.argv[1]))
"""


def test_tokens_are_read_again(loop: Loop, tmp_path: Path) -> None:
    file = write_api_keys(tmp_path, f"read:{OLD}\nconsole:{CONSOLE}\n")
    config = CompletionsConfig(port=0, alias=NAME, api_key_file=file)
    port = Port(config, partial(fake_engine.engine, tmp_path / "ended"))
    loop.run(port.start())
    try:

        def status(api_key: str) -> int:
            return Client(port.address).get("/v1/models", Authorization=f"Bearer {api_key}")[0]

        assert (status(OLD), status(NEW), status(CONSOLE)) == (200, 401, 403)
        assert Client(port.address).get("/health")[0] == 200
        code, error = Client(port.address).get("/v1/models")
        assert (code, error["error"]["type"]) == (401, "authentication_error")
        file.write_text(f"read:{NEW}\n")
        for _ in range(100):  # the file is read twice a second
            if status(NEW) == 200:
                break
            sleep(0.1)
        assert (status(OLD), status(NEW)) == (401, 200)
    finally:
        loop.run(port.stop())


@pytest.mark.system
@pytest.mark.parametrize(
    ("engine", "sent"),
    [
        pytest.param(*each, marks=() if each in BY_DEFAULT else pytest.mark.exhaustive)
        for each in product(("stubborn", "loading"), SIGNALS)
    ],
)
def test_a_signal_ends_an_engine_that_does_not_heed_it(
    engine: str, sent: signal.Signals, tmp_path: Path
) -> None:
    with serving(tmp_path, engine) as server:
        said_by(server, "^an engine is here$" if engine == "loading" else r"^fake at (http\S+)/v1$")
        server.send_signal(sent)
        rest = server.communicate(timeout=60)[1]  # ends with the engine, which has the same stderr
    assert server.returncode == 0, rest
    assert ("something still ran 3 s after the signal" in rest) == (engine == "stubborn")


@pytest.mark.system
def test_an_engine_ends_with_the_process_of_the_port(tmp_path: Path) -> None:
    with serving(tmp_path, "stubborn") as server:
        said_by(server, r"^fake at (http\S+)/v1$")
        server.kill()
        server.communicate(timeout=60)


def serving(folder: Path, engine: str) -> AbstractContextManager[Popen[str]]:
    script = folder / "serving.py"
    script.write_text(SERVE)
    return process(script, engine, PYTHONPATH=str(Path.cwd()))
