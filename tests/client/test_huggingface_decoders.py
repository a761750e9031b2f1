"""Hugging Face models with indexes: in process, and over a real channel."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.decoder import Decoder
from logitsieve.client import DecoderClient
from logitsieve.client.huggingface import attach
from logitsieve.decoding import LocalDecoder
from logitsieve.heads import Softmax
from logitsieve.index import open_index
from tests.client import tiny_models
from tests.client.dense import generate
from tests.client.tiny_models import prompts
from tests.server.running import Loop, config_for, running
from tests.synthetic import write_heads

PAGE = Path(__file__).parents[2] / "docs" / "huggingface.md"
SEARCHES: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "bad_words_ids": [[7]]},
    {"num_beams": 4},
    {"num_beams": 4, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    {"do_sample": True, "top_k": 12, "repetition_penalty": 1.3},
]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_models.gpt2()


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models with `lm`, of the full and the head sketch."""
    folder = tmp_path_factory.mktemp("models")
    weight = model.lm_head.weight.detach().numpy().copy()
    softmax = Softmax(weight, np.zeros(len(weight), np.float32))
    write_heads(folder / "lm" / "1", softmax, "sketch")
    return folder


@pytest.fixture(scope="module")
def local(folder: Path) -> LocalDecoder:
    return LocalDecoder(open_index(folder / "lm" / "1"))


@pytest.fixture(scope="module")
def remote(folder: Path, loop: Loop) -> Iterator[DecoderClient]:
    with running(loop, config_for(folder)) as run:
        yield run.client


@pytest.fixture(params=["local", "remote"])
def decoder(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("head", ["full", "sketch"])
@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: "+".join(search) or "greedy")
def test_generate_chooses_what_it_chose(
    model: Any, decoder: Decoder, head: str, search: dict[str, Any]
) -> None:
    expected = generate(model, **search)
    with attach(model, decoder, k=4, model="lm", head=head, normalizer="full"):
        assert generate(model, **search) == expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.8, "top_p": 0.9, "output_scores": True},
        {"repetition_penalty": 1.3, "sequence_bias": [[[9], 2.0]], "min_p": 0.01},
        {"no_repeat_ngram_size": 1, "repetition_penalty": 1.3},
    ],
    ids="+".join,
)
def test_the_same_draws_in_process_and_over_the_wire(
    model: Any, local: LocalDecoder, remote: DecoderClient, options: dict[str, Any]
) -> None:
    texts = []
    for decoder in (local, remote):
        with attach(model, decoder, model="lm", head="sketch"):
            texts.append(generate(model, do_sample=True, top_k=0, **options))
    assert texts[0] == texts[1]


def test_the_examples_of_the_page_run(
    model: Any, folder: Path, remote: DecoderClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    text = PAGE.read_text(encoding="utf-8")
    text = text.replace("models/lm/1", f"{folder.name}/lm/1").replace(
        "localhost:50051", remote.address
    )
    loading, *examples = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    names: dict[str, Any] = {"model": model, "inputs": prompts()}  # a tiny model has no tokenizer
    assert all(f"\n{name} = " in loading for name in names)
    for number, code in enumerate(examples):
        exec(compile(code, f"{PAGE.name}, example {number + 2}", "exec"), names)
    assert names["best"].shape[0] == names["drawn"].shape[0] == 3
