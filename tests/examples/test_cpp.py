"""The C++ client is built, and answers as Python's does."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from logitsieve.api.results import Float32, Int32
from logitsieve.client import DecoderClient
from logitsieve.client.beam_search import beam_search
from logitsieve.index import open_index
from tests.server.conftest import models as models
from tests.server.conftest import server as server
from tests.server.running import Running

pytestmark = [
    pytest.mark.cpp,
    pytest.mark.timeout(1800),  # a compiler on a busy machine
    pytest.mark.skipif(
        not (shutil.which("cmake") and shutil.which("grpc_cpp_plugin")),
        reason="cmake or grpc_cpp_plugin is not installed",
    ),
]
SOURCES = Path(__file__).parents[2] / "examples" / "cpp"
SENTENCES = 3


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("cpp")
    for arguments in (["-S", str(SOURCES), "-B", str(built)], ["--build", str(built)]):
        subprocess.run(["cmake", *arguments], check=True, capture_output=True, text=True)
    return built / "decode"


@pytest.fixture
def inputs(models: Path, tmp_path: Path) -> list[str]:
    """The program's arguments after the address."""
    with open_index(models / "other" / "1") as index:
        vocab_size, dim = index.vocab_size, index.dim
    random = np.random.default_rng(3)
    for name, rows in (("hidden_states", SENTENCES), ("embedding", vocab_size)):
        random.standard_normal((rows, dim)).astype("<f4").tofile(tmp_path / f"{name}.f32")
    return ["other", str(tmp_path / "hidden_states.f32"), str(tmp_path / "embedding.f32"), str(dim)]


def run(decode: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([decode, *arguments], capture_output=True, text=True, timeout=60)


def test_it_answers_as_python_does(decode: Path, server: Running, inputs: list[str]) -> None:
    model, *paths, dim = inputs
    hidden_states, embedding = (np.fromfile(path, "<f4").reshape(-1, int(dim)) for path in paths)
    state: Float32 = hidden_states

    def step(parents: Int32, tokens: Int32) -> Float32:
        nonlocal state
        state = np.float32(0.5) * state[parents] + embedding[tokens]
        return state

    lines: list[str] = []

    def say(name: str, number: int, ids: object) -> None:
        lines.append(" ".join(map(str, (name, number, *np.asarray(ids).tolist()))))

    with DecoderClient(server.address) as client:
        for row, ids in enumerate(client.topk(hidden_states, 5, model=model).ids):
            say("best", row, ids)
        seeds = np.arange(7, 7 + SENTENCES, dtype=np.uint64)
        drawn = client.sample(
            hidden_states, 3, seeds=seeds, temperature=0.8, top_p=0.95, model=model
        )
        for row, ids in enumerate(drawn.ids):
            say("drawn", row, ids)
        found = beam_search(
            client,
            hidden_states,
            step,
            num_beams=4,
            eos_ids=[1],
            max_tokens=8,
            n_best=4,
            model=model,
        )
    for sentence, hypotheses in enumerate(found.hypotheses):
        for each in hypotheses:
            say("found", sentence, each.tokens)
    answered = run(decode, server.address, *inputs)
    assert answered.stderr == ""
    assert answered.stdout.splitlines() == lines


def test_a_refused_call_shows_the_servers_message(
    decode: Path, server: Running, inputs: list[str]
) -> None:
    answered = run(decode, server.address, "absent", *inputs[1:])
    assert answered.returncode == 1
    assert answered.stderr.startswith("decode: model: no 'absent' here")


def test_calls_are_timed(decode: Path, server: Running, inputs: list[str]) -> None:
    answered = run(decode, server.address, *inputs, "20")
    assert 1 < float(answered.stdout) < 1e6
