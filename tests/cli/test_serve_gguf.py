import os
import signal
import subprocess
from pathlib import Path

import pytest

from logitsieve.api.watermark import WatermarkKey
from logitsieve.decoding.watermark import detect_watermark
from tests.cli.conftest import PROGRAM, whole_words
from tests.completions.conftest import Client
from tests.llamacpp.small_model import Make
from tests.server.running import said_by

pytestmark = pytest.mark.usefixtures("llama_wheel")


@pytest.mark.system
def test_the_command_answers_marks_draws_and_stops(
    make_gguf: Make, gguf_index: Path, tmp_path: Path
) -> None:
    """Also after its engine has crashed; draws that ask for nothing are detected by the key."""
    (tmp_path / "key").write_bytes(bytes(16))
    options = ("--port", "0", "--alias", "lm", "--threads", "1", "--ctx-size", "128")
    marking = ("--watermark-key-file", tmp_path / "key", *options)
    command = [PROGRAM, "serve-gguf", make_gguf(), "--index", gguf_index, *marking]
    server = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    client = Client(said_by(server, r"^lm at (http://127\.0\.0\.1:\d+)/v1$")[1])
    asked = {"prompt": "the time", "max_tokens": 3, "echo": True, "logprobs": 1, "temperature": 0}
    made = client.completion(**asked)
    [facts] = made["logitsieve"]["choices"]
    assert facts["heads"] == ["sketch"]
    assert facts["proven"]
    assert len(made["logitsieve"]["index"]) == 64
    [engine] = [child for child in children(server.pid) if b"spawn_main" in command_of(child)]
    os.kill(engine, signal.SIGSEGV)
    assert client.completion(**asked)["choices"] == made["choices"]
    assert client.get("/health") == (200, {"status": "ok", "engine_ends": 1})
    words = whole_words(make_gguf())
    drawing = {"prompt": "go", "max_tokens": 60, "temperature": 1, "seed": 3, "logprobs": 0}
    drawn = client.completion(logit_bias={str(one): 100 for one in words.values()}, **drawing)
    ids = [words[one] for one in drawn["choices"][0]["logprobs"]["tokens"]]
    keys = WatermarkKey(bytes(16)), WatermarkKey(bytes(15) + b"x")
    own, other = (detect_watermark(key, ids).p_value for key in keys)
    assert own < 1e-6 < 1e-3 < other
    server.send_signal(signal.SIGTERM)
    rest = server.communicate(timeout=60)[1]
    assert server.returncode == 0, rest
    assert "Fatal Python error: Segmentation fault" in rest
    assert "the engine ended by SIGSEGV: it is started again in 0 s" in rest


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
