"""Hugging Face models and beam search with indexes: in process, and over a real channel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.decoder import Decoder
from logitsieve.client import DecoderClient
from logitsieve.client.beam_search import beam_search
from logitsieve.client.huggingface import attach
from logitsieve.decoding import LocalDecoder
from logitsieve.heads import Softmax
from logitsieve.index import HeadEntry, open_index, write_index
from tests.client import tiny_models
from tests.client.dense import DenseDecoder, generate
from tests.client.tiny_models import DIM, EOS, prompts
from tests.server.running import Loop, config_for, running
from tests.synthetic import certified_arrays

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
    """A folder of models with `lm`, of the exact and the certified head."""
    folder = tmp_path_factory.mktemp("models")
    weight = model.lm_head.weight.detach().numpy().copy()
    softmax = Softmax(weight, np.zeros(len(weight), np.float32))
    write_index(
        folder / "lm" / "1",
        softmax=softmax,
        parts={"sketch": certified_arrays(softmax)},
        heads={"exact": HeadEntry(), "certified": HeadEntry("sketch")},
        default_head="certified",
    )
    return folder


@pytest.fixture(scope="module")
def local(folder: Path, kernel_cache: Path) -> LocalDecoder:
    return LocalDecoder(open_index(folder / "lm" / "1", kernel_cache=kernel_cache))


@pytest.fixture(scope="module")
def remote(folder: Path, kernel_cache: Path) -> Iterator[DecoderClient]:
    loop = Loop()
    with running(loop, config_for(folder, kernel_cache=kernel_cache)) as run:
        yield run.client
    loop.close()


@pytest.fixture(params=["local", "remote"])
def decoder(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("head", ["exact", "certified"])
@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: "+".join(search) or "greedy")
def test_generate_chooses_what_it_chose(
    model: Any, decoder: Decoder, head: str, search: dict[str, Any]
) -> None:
    expected = generate(model, **search)
    with attach(model, decoder, k=4, model="lm", head=head, normalizer="exact"):
        assert generate(model, **search) == expected


def test_log_z_is_found_as_score_finds_it(model: Any, decoder: Decoder) -> None:
    expected = generate(model, num_beams=2)
    with attach(model, decoder, head="certified") as attached:
        assert generate(model, num_beams=2) == expected
        assert attached.head.last is not None
        assert attached.head.last.log_z is not None


def test_the_same_search_in_process_and_over_the_wire(
    model: Any, local: LocalDecoder, remote: DecoderClient
) -> None:
    random = np.random.default_rng(0)
    hidden = random.standard_normal((5, DIM)).astype(np.float32)
    words = random.standard_normal((tiny_models.VOCABULARY, DIM)).astype(np.float32)

    class Stepping:
        def __init__(self) -> None:
            self.hidden = hidden

        def step(self, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
            self.hidden = np.tanh(self.hidden[parents] / 2 + words[tokens])
            return self.hidden

    options: dict[str, Any] = {"beams": 3, "eos_ids": [EOS], "max_tokens": 7, "n_best": 3}
    dense = DenseDecoder(model.lm_head.weight.detach().numpy())
    expected = beam_search(dense, hidden, Stepping().step, **options)
    found = beam_search(local, hidden, Stepping().step, head="certified", **options)
    wired = beam_search(remote, hidden, Stepping().step, head="certified", **options)
    assert wired.hypotheses == found.hypotheses
    assert found.exact.all()
    for ours, theirs in zip(found.hypotheses, expected.hypotheses, strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]


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
    assert names["best"].shape[0] == names["text"].shape[0] == 3
    assert names["text"].shape[1] == prompts()["input_ids"].shape[1] + 10
