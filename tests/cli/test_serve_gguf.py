import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from logitsieve.api.watermark import WatermarkKey
from logitsieve.decoding.watermark import detect_watermark
from logitsieve.llamacpp import LlamaContext
from tests.cli.conftest import PROGRAM, Run
from tests.completions.conftest import Client
from tests.llamacpp.small_model import Make
from tests.server.running import said_by

pytestmark = pytest.mark.usefixtures("llama_wheel")


@pytest.mark.system
def test_the_command_answers_and_stops(make_gguf: Make, gguf_index: Path) -> None:
    options = ("--port", "0", "--alias", "lm", "--threads", "1", "--ctx-size", "64")
    command = [PROGRAM, "serve-gguf", make_gguf(), "--index", gguf_index, *options]
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
    server.send_signal(signal.SIGTERM)
    rest = server.communicate(timeout=60)[1]
    assert server.returncode == 0, rest
    assert "Fatal Python error: Segmentation fault" in rest
    assert "the engine ended by SIGSEGV: it is started again in 0 s" in rest


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_bad_options_are_refused_before_the_model_is_read(run: Run, make_gguf: Make) -> None:
    said = "error: tls_key: got nothing"
    run("serve-gguf", make_gguf(), "--tls-cert", "cert.pem", code=2, says=said)
    run("serve-gguf", "absent.gguf", code=2)
    said = "error: head: got 'screen', allowed: sketch, dense; others"
    run("serve-gguf", make_gguf(), "--head", "screen", code=2, says=said)


@pytest.mark.system
def test_a_key_file_marks_every_draw_of_the_server(make_gguf: Make, tmp_path: Path) -> None:
    """Draws that ask for nothing are detected by the key; greedy text is as without one."""
    (tmp_path / "key").write_bytes(bytes(16))
    options = ("--port", "0", "--alias", "lm", "--threads", "1", "--head", "dense")
    with LlamaContext(make_gguf()) as context:
        pieces = {context.piece(one).decode("utf-8", "replace"): one for one in range(300, 560)}
    words = {piece: one for piece, one in pieces.items() if re.fullmatch(" [a-z]+", piece)}
    bias = {str(one): 100 for one in words.values()}
    asked = {"prompt": "go", "max_tokens": 60, "logit_bias": bias}
    ids, greedy = list[int](), list[str]()
    for marked in ((), ("--watermark-key-file", tmp_path / "key")):
        command = [PROGRAM, "serve-gguf", make_gguf(), *options, *marked]
        server = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
        client = Client(said_by(server, r"^lm at (http://127\.0\.0\.1:\d+)/v1$")[1])
        greedy.append(client.completion(**asked, temperature=0)["choices"][0]["text"])
        if marked:
            drawn = client.completion(**asked, temperature=1, seed=3, logprobs=0)
            ids = [words[one] for one in drawn["choices"][0]["logprobs"]["tokens"]]
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert greedy[0] == greedy[1]
    assert detect_watermark(WatermarkKey(bytes(16)), ids).p_value < 1e-6
    assert detect_watermark(WatermarkKey(bytes(15) + b"x"), ids).p_value > 1e-3
