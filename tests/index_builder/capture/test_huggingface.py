import gzip
import logging
import sys
from importlib import reload
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from logitsieve.api.errors import InvalidRequest, MissingExtra
from logitsieve.index_builder.capture import CaptureConfig, capture, huggingface
from logitsieve.index_builder.capture.huggingface import open_folder
from tests.client.tiny_models import VOCABULARY, gpt2, marian, prompts
from tests.refusals import refused

WORDS = {"<unk>": 0, "<s>": 1} | {f"w{number}": number for number in range(2, VOCABULARY)}
FLOATS = CaptureConfig(dtype="float32")


def write_tokenizer(folder: Path, *, begins: bool) -> None:
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    if begins:
        tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="<s>"
    )
    fast.save_pretrained(folder)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A file of 150 words, and their ids."""
    ids = np.random.default_rng(0).integers(2, VOCABULARY, 150).tolist()
    lines = [" ".join(f"w{one}" for one in ids[i : i + 7]) for i in range(0, len(ids), 7)]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path, ids


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "begins"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begins" if request.param else "plain")
    gpt2().save_pretrained(folder)
    write_tokenizer(folder, begins=request.param)
    return folder


@pytest.mark.parametrize("zipped", [False, True])
def test_the_text_is_read_once_in_windows(
    folder: Path, text: tuple[Path, list[int]], tmp_path: Path, zipped: bool
) -> None:
    path, ids = text
    if zipped:
        path = tmp_path / "text.txt.gz"
        path.write_bytes(gzip.compress(text[0].read_bytes()))
    model, batches = open_folder(folder, path, window=20)
    summary = capture(model, batches, tmp_path / "out", config=FLOATS)
    begin = [1] if folder.name.startswith("begins") else []
    length = 20 - len(begin)
    rows = [begin + ids[start : start + length] for start in range(0, len(ids), length)]
    with torch.no_grad():
        states = [gpt2().transformer(torch.tensor([row])).last_hidden_state for row in rows]
    expected, got = [each[0].numpy() for each in states], np.load(tmp_path / "out" / "00000.npy")
    np.testing.assert_allclose(got, np.concatenate(expected), rtol=1e-4, atol=1e-5)
    assert (summary["output_layer"], summary["window"]) == ("lm_head", 20)
    assert summary["rows_seen"] == sum(map(len, rows))


def test_windows_are_no_longer_than_the_model_can_read(
    folder: Path, text: tuple[Path, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        _, batches = open_folder(folder, text[0], window=1000)
    assert "window: got 1000, but the model has 64 positions" in caplog.text
    assert batches.window == 64
    assert {batch["input_ids"].shape[1] for batch in list(batches)[:-1]} <= {64}


def test_the_weights_and_biases_are_those_of_the_model(
    folder: Path, text: tuple[Path, list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture(*open_folder(folder, text[0], window=64), tmp_path / "out", progress=None)
    assert capsys.readouterr() == ("", "")  # no bars of transformers either
    weight = gpt2().lm_head.weight.detach().numpy()
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "weight.npy"), weight)
    assert not np.load(tmp_path / "out" / "bias.npy").any()
    model, source = marian(), prompts()["input_ids"]
    batch = {"input_ids": source, "decoder_input_ids": source}
    capture(model, [batch], tmp_path / "marian")
    bias = model.final_logits_bias[0].numpy()
    np.testing.assert_array_equal(np.load(tmp_path / "marian" / "bias.npy"), bias)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"folder": "absent"}, "huggingface"),
        ({"folder": "."}, "huggingface"),
        ({"text": "absent.txt"}, "text"),
        ({"window": 1}, "window"),
    ],
)
def test_what_is_refused(
    folder: Path, text: tuple[Path, list[int]], tmp_path: Path, options: dict[str, Any], field: str
) -> None:
    chosen = {"folder": folder, "text": text[0]} | options
    paths = [tmp_path / chosen.pop(name) for name in ("folder", "text")]
    with refused(field):
        open_folder(*paths, **chosen)


def test_models_without_weights_and_with_encoders_are_named(
    folder: Path, tmp_path: Path, text: tuple[Path, list[int]]
) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "text.txt").write_text("w2 w3\n")
    with pytest.raises(InvalidRequest, match="a tokenizer of a causal language model"):
        open_folder(tmp_path, tmp_path / "text.txt")
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(InvalidRequest, match=r"t5, with an encoder.*--module"):
        open_folder(tmp_path, text[0])


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_its_packages_the_pip_line_is_shown(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package} is not .*'\.\[huggingface\]'"):
        reload(huggingface)
