"""The process of the endpoint: its port, its tokens, its end."""

from pathlib import Path
from time import sleep

from logitsieve.client.llamacpp import LlamaAttachment
from logitsieve.completions import CompletionsConfig
from logitsieve.completions.serve import Endpoints
from tests.completions.conftest import NAME, Client
from tests.server.materials import write_tokens
from tests.server.running import Loop

OLD, NEW, CONSOLE = "a-token-of-readers", "another-one-of-readers", "console-token-0123"


def test_tokens_are_read_again(loop: Loop, attached: LlamaAttachment, tmp_path: Path) -> None:
    file = write_tokens(tmp_path, f"read:{OLD}\nconsole:{CONSOLE}\n")
    endpoints = Endpoints(
        attached,
        CompletionsConfig(port=0, name=NAME, tokens=file),
        before_turn=lambda: None,
        head_name=lambda: "certified",
        index_hash=lambda: "hash",
    )
    loop.run(endpoints.start())
    try:

        def status(token: str) -> int:
            return Client(endpoints.address).get("/v1/models", Authorization=f"Bearer {token}")[0]

        assert (status(OLD), status(NEW), status(CONSOLE)) == (200, 401, 403)
        assert Client(endpoints.address).get("/health")[0] == 200
        code, error = Client(endpoints.address).get("/v1/models")
        assert (code, error["error"]["type"]) == (401, "authentication_error")
        file.write_text(f"read:{NEW}\n")
        for _ in range(100):  # the file is read twice a second
            if status(NEW) == 200:
                break
            sleep(0.1)
        assert (status(OLD), status(NEW)) == (401, 200)
    finally:
        loop.run(endpoints.stop())
