"""Every script of examples/ runs, with the arguments that its first lines name."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.index_builder import BuildConfig
from tests.server.conftest import models as models
from tests.server.conftest import server as server
from tests.server.running import Running
from tests.synthetic import make_hidden, make_softmax, write_heads

EXAMPLES = Path(__file__).parents[2] / "examples"
LIGHT = BuildConfig(clusters_tried=(8,), rounds=1, steps=5, kmeans_iterations=3)
TESTED = {
    *("arrays_to_index", "beam_search", "huggingface_generate", "kserve_infer", "nano"),
    *("server_and_clients", "train_gguf"),
}


def main_of(name: str) -> Callable[..., Any]:
    main: Callable[..., Any] = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    return main


def test_every_example_is_tested_and_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TESTED
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"({name}.py)" in listed for name in TESTED)


@pytest.mark.parametrize("name", sorted(TESTED - {"nano", "train_gguf"}))
def test_without_arguments_it_prints_its_usage(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(EXAMPLES / f"{name}.py")
    monkeypatch.setattr("sys.argv", [path])
    with pytest.raises(SystemExit, match=f"python examples/{name}.py"):
        runpy.run_path(path, run_name="__main__")


@pytest.mark.usefixtures("always_a_sketch")
def test_arrays_to_index_beam_search_and_kserve_infer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], models: Path, server: Running
) -> None:
    softmax = make_softmax()
    arrays = tmp_path / "softmax.npz"
    np.savez(arrays, W=softmax.weight, b=softmax.bias, contexts=np.float32(make_hidden(600)))
    main_of("arrays_to_index")(arrays, tmp_path / "lm" / "1", LIGHT)
    assert "sketch     same ids 1.000  proven 0.000" in capsys.readouterr().out
    main_of("beam_search")(str(models / "other" / "1"))
    assert len(capsys.readouterr().out.splitlines()) == 4
    main_of("kserve_infer")(server.address, "other")
    assert "proven [True, True, True, True]" in capsys.readouterr().out


async def test_server_and_clients(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first of the models is another one, of another width."""
    write_heads(tmp_path / "aa" / "1", make_softmax(dim=16), "sketch")
    (tmp_path / "other").symlink_to(models / "other")
    await main_of("server_and_clients")(tmp_path, "other")
    lines = dict(line.split("[", 1) for line in capsys.readouterr().out.splitlines())
    answered = {name.strip(): ids.partition("]")[0] for name, ids in lines.items()}
    assert answered["one call"] == answered["stream"] == answered["asyncio"]


def test_huggingface_generate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.client import tiny_models
    from tests.index_builder.capture.test_huggingface import write_tokenizer

    model = tiny_models.gpt2()
    write_tokenizer(tmp_path / "model", begins=False)
    model.save_pretrained(tmp_path / "model")
    weight = model.lm_head.weight.detach().numpy().copy()
    softmax = Softmax(weight, np.zeros(len(weight), np.float32))
    write_heads(tmp_path / "lm" / "1", softmax, "screen", "sketch")
    main_of("huggingface_generate")(str(tmp_path / "model"), str(tmp_path / "lm" / "1"), "w5 w6 w7")
    assert "the same ids" in capsys.readouterr().out


def test_a_model_is_trained_and_written_as_gguf(
    tmp_path: Path, llama_wheel: None, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed: pip install '.[llamacpp]'")
    from logitsieve.llamacpp import LlamaContext

    text, out = tmp_path / "text.txt", tmp_path / "lm.gguf"
    text.write_text("the cat sat on the mat and the dog lay on the rug\n" * 60)
    train = main_of("train_gguf")
    train.__globals__["BATCH"] = 2
    train(str(text), str(out), "60", "F16")
    assert "tokens, of" in capsys.readouterr().out
    with LlamaContext(out) as context:
        logits = context.read(context.tokenize("the cat sat on"))
        assert context.piece(int(logits.argmax())) == b" the"
