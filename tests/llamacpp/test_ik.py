"""ik_llama.cpp as a host: what it computes as llama.cpp does, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.client.llamacpp import generate
from logitsieve.llamacpp import GgufModel, LlamaContext, open_context
from logitsieve.llamacpp.ik import ARCHITECTURES, RIGHT, ik_llama_cpp
from tests.llamacpp.small_model import END, Make, gemma4
from tests.refusals import refused

pytest.importorskip("ik_llama_cpp", reason="ik_llama_cpp is not installed: pip install '.[ik]'")
pytestmark = pytest.mark.usefixtures("llama_wheel")

TOKENS = [5 + 7 * place % 500 for place in range(600)]
GEMMA = tuple(
    (f"gemma3.attention.{name}", size)
    for name, size in {"sliding_window": 64, "key_length": 16, "value_length": 16}.items()
)
MORE: dict[str, dict[str, Any]] = {"gemma3": {"tied": True, "keys": GEMMA}}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_llama_cpps(make_gguf: Make, architecture: str) -> None:
    path = make_gguf(architecture=architecture, layers=6, **MORE.get(architecture, {}))
    with LlamaContext(path, engine="ik") as ours, LlamaContext(path) as theirs:
        expected = theirs.read(TOKENS[:200], every=True)
        got = ours.read(TOKENS[:200], every=True)
        assert np.abs(got - expected).max() <= 1e-2 * np.abs(expected).max()
        expected, got = (context.step({0: 7}) for context in (theirs, ours))
        assert np.abs(got - expected).max() <= 1e-2 * np.abs(expected).max()


TYPES = ("F16", "BF16", "Q8_0", "Q4_0", "Q5_0", "Q4_1", "Q5_1")


@pytest.mark.parametrize("dim", [96, 128])
@pytest.mark.parametrize("kind", TYPES)
def test_long_batches_of_every_type_are_right(make_gguf: Make, kind: str, dim: int) -> None:
    """It would multiply 32 rows or more by three blocks of Q4_1 wrongly."""
    path = make_gguf(body=kind, head=kind, dim=dim)
    assert ik_llama_cpp().most_at_once(GgufModel(path), 512) == (
        RIGHT if dim % 128 and kind in ("Q4_1", "Q5_1") else 512
    )
    with LlamaContext(path, engine="ik", positions=1024) as ours:
        with LlamaContext(path, positions=1024) as theirs:
            expected = theirs.read(TOKENS)
        got = ours.read(TOKENS)
        assert np.abs(got - expected).max() <= 0.1 * np.abs(expected).max()
        ours.headless = True
        ours.forget()
        every = ours.read(TOKENS[:100], every=True)
        ours.forget()
        alone = np.concatenate([ours.read([token]) for token in TOKENS[:100]])
        assert np.linalg.norm(every - alone) <= 0.1 * np.linalg.norm(alone)


def test_a_wrong_batch_would_be_seen(make_gguf: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitsieve.llamacpp.ik.RIGHT", 512)
    with refused("model", "32 tokens read at once give other hidden states"):
        LlamaContext(make_gguf(body="Q4_1", dim=96), engine="ik")


REFUSED: dict[str, dict[str, Any]] = {
    "the architecture gemma4, none of": gemma4(),
    "a gemma3 of 2 layers, fewer than 6": {"architecture": "gemma3", **MORE["gemma3"]},
    "ik-llama-cpp-python .* aborts, .*GGML_ASSERT.*failed.* tokens are 'twice'": {
        "extra": ("twice", "twice")
    },
    "n > N_MAX: 600 > 512 for key llama.feed_forward_length": {
        "keys": (("llama.block_count", 600),)
    },
}


@pytest.mark.parametrize("reason", REFUSED)
@pytest.mark.parametrize("debugger", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_what_would_end_the_process_is_refused_by_name(
    make_gguf: Make,
    reason: str,
    debugger: bool,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ggml starts gdb, which is slow; where there is none, it may hang in exit() after fork()."""
    if not debugger:
        monkeypatch.setenv("PATH", str(tmp_path))
    path = make_gguf(**REFUSED[reason])
    with pytest.raises(InvalidRequest, match=f"model: got .*{reason}"):
        LlamaContext(path, engine="ik", threads=2)
    assert capfd.readouterr() == ("", "")
    with LlamaContext(make_gguf(), engine="ik") as context:
        assert np.isfinite(context.read([5, 6, 7])).all()


def test_a_sequence_that_is_full_ends_alone(make_gguf: Make) -> None:
    with LlamaContext(make_gguf(), sequences=2, positions=512, engine="ik") as context:
        made = generate(context, [[5] * 250, [6]], max_tokens=40, banned=[END])
        assert len(list(made)) == 47
        assert [len(ids) for ids in made.ids] == [7, 40]
        with refused("prompts", "got 300 tokens, allowed: 256 at most"):
            generate(context, [[5] * 300, [6]])


def test_auto_takes_it_where_it_runs_the_file(
    make_gguf: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with open_context(make_gguf(), sequences=2) as context:
        assert context.host.engine == "ik"
        assert context.separate
    with refused("sequences", "got 0"):
        open_context(make_gguf(), sequences=0)
    assert "llama.cpp runs" not in caplog.text
    with open_context(make_gguf(architecture="gemma2", tied=True)) as context:
        assert context.host.engine == "llamacpp"
    assert "the architecture gemma2, none of" in caplog.text
    with open_context(make_gguf(), "llamacpp") as context:
        assert context.host.engine == "llamacpp"
    with refused("engine", "got 'vllm', allowed: llamacpp, ik"):
        LlamaContext(make_gguf(), engine="vllm")
    with refused("engine", "got 'vllm', allowed: llamacpp, ik, auto"):
        open_context(make_gguf(), engine="vllm")


def test_a_python_without_wheels_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitsieve.llamacpp.ik.is_installed", lambda: False)
    monkeypatch.setattr("logitsieve.llamacpp.ik.BEYOND", (3, 0))
    with refused("engine", "got ik on Python 3.*, allowed: .* has wheels up to Python 3.13"):
        ik_llama_cpp.__wrapped__()
