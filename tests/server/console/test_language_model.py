from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.index import Index, open_index
from logitsieve.server.console.language_model import (
    FILE,
    MOST_WORDS,
    Reader,
    model_of,
    read_text,
    reads_words,
)
from logitsieve.training.trainer import LanguageModel, Vocabulary
from tests.server.console.conftest import SPOKEN_WORDS


@pytest.fixture
def copied(shown_models: Path, tmp_path: Path, kernel_cache: Path) -> Index:
    """spoken@1 in a folder of its own."""
    shutil.copytree(shown_models / "spoken", tmp_path / "spoken")
    return open_index(tmp_path / "spoken" / "1", kernel_cache=kernel_cache)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_contexts_are_those_of_the_trained_model(
    copied: Index, tied: bool, dtype: torch.dtype, normalized: bool
) -> None:
    file = copied.path.parent / FILE
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    if not tied:
        tensors["output.weight"] = tensors["embedding.weight"].clone()
        tensors["embedding.weight"] = torch.randn(SPOKEN_WORDS, 10).to(dtype)
    save_file(tensors, file, {"contexts": "normalized"} if normalized else None)
    words = [5, 1, 0, 39, 17, 5, 2]
    trained = LanguageModel.load(file.parent)
    with torch.inference_mode():
        expected = trained.hidden(torch.tensor([words]))[0][:, -1].numpy()
    reader = Reader(model_of(copied))
    reader.read(words[:3])
    found = reader.read(words[3:])
    assert found.dtype == np.float32
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_words_are_the_ids_of_the_trainer(spoken: LocalDecoder) -> None:
    text = "say3 say39\nnothing say2 <eos>  <unk>"
    assert spoken.index.vocabulary is not None
    assert read_text(spoken.index, text) == Vocabulary(spoken.index.vocabulary).encode(text)


@pytest.mark.parametrize("text", ["", " ", 7, None, ["say2"], "say2 " * (MOST_WORDS + 1)])
def test_no_words(spoken: LocalDecoder, text: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^text: "):
        read_text(spoken.index, text)


def test_a_vocabulary_of_another_kind(demo: LocalDecoder) -> None:
    with pytest.raises(InvalidRequest, match=r"^text: .*<unk> first"):
        read_text(demo.index, "word12")


def test_no_model_beside_the_index(demo: LocalDecoder, spoken: LocalDecoder) -> None:
    assert reads_words(spoken.index)
    assert not reads_words(demo.index)
    with pytest.raises(InvalidRequest, match=r"^text: .*demo/model\.safetensors"):
        model_of(demo.index)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("lstm.weight_hh_l1"),
        lambda tensors: tensors.pop("embedding.weight"),
        lambda tensors: tensors.pop("output.bias"),
        lambda tensors: [tensors.pop(name) for name in list(tensors) if "lstm" in name],
        lambda tensors: tensors.update({"lstm.weight_ih_l0": torch.zeros(40, 7)}),
        lambda tensors: tensors["lstm.bias_hh_l0"].fill_(torch.nan),
        lambda tensors: tensors.update({"embedding.weight": torch.randn(SPOKEN_WORDS, 11)}),
        lambda tensors: tensors.update({"embedding.weight": torch.randn(SPOKEN_WORDS, 10)}),
        lambda tensors: tensors.update({"output.weight": torch.randn(SPOKEN_WORDS + 1, 10)}),
        lambda tensors: tensors["output.bias"].fill_(torch.nan),
    ],
)
def test_another_model_is_refused(copied: Index, change: object) -> None:
    file = copied.path.parent / FILE
    tensors = load_file(file)
    change(tensors)  # type: ignore[operator]
    save_file(tensors, file)
    with pytest.raises(InvalidRequest, match=r"^text: .*model\.safetensors.*allowed: a model of"):
        model_of(copied)


@pytest.mark.parametrize("content", [b"", b"\x08" + bytes(7) + b"{}", b"not a tensor file at all"])
def test_a_file_that_is_no_model_is_refused(copied: Index, content: bytes) -> None:
    (copied.path.parent / FILE).write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"^text: "):
        model_of(copied)
