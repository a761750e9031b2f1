"""Hugging Face models and beam search with indexes: in process, and over a real channel."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from logitsieve.api.decoder import Decoder
from logitsieve.client import DecoderClient
from logitsieve.client.beam_search import beam_search
from logitsieve.client.huggingface import attach
from logitsieve.decoding import LocalDecoder
from logitsieve.heads import Softmax
from logitsieve.index import open_index
from tests.client import tiny_models
from tests.client.dense import DenseDecoder, generate
from tests.client.tiny_models import DIM, EOS, prompts
from tests.oracle import chi_square_p
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
    """A folder of models with `lm`, of the exact and the certified head."""
    folder = tmp_path_factory.mktemp("models")
    weight = model.lm_head.weight.detach().numpy().copy()
    softmax = Softmax(weight, np.zeros(len(weight), np.float32))
    write_heads(folder / "lm" / "1", softmax, "certified")
    return folder


@pytest.fixture(scope="module")
def local(folder: Path, kernel_cache: Path) -> LocalDecoder:
    return LocalDecoder(open_index(folder / "lm" / "1", kernel_cache=kernel_cache))


@pytest.fixture(scope="module")
def remote(folder: Path, kernel_cache: Path, loop: Loop) -> Iterator[DecoderClient]:
    with running(loop, config_for(folder, kernel_cache=kernel_cache)) as run:
        yield run.client


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
        with attach(model, decoder, model="lm", head="certified"):
            texts.append(generate(model, do_sample=True, top_k=0, **options))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("head", ["exact", "certified"])
def test_draws_follow_the_plain_models_law(model: Any, local: LocalDecoder, head: str) -> None:
    options = {"do_sample": True, "top_k": 0, "temperature": 1.1, "repetition_penalty": 1.5}
    options |= {"max_new_tokens": 1, "return_dict_in_generate": True, "output_scores": True}
    expected = model.generate(**prompts(1), **options).scores[0][0].double().softmax(0).numpy()
    torch.manual_seed(2)
    with attach(model, local, head=head, width=1e-4):
        made = model.generate(**prompts(1), **options, num_return_sequences=8_000)
    drawn = made.sequences[:, -1]
    assert chi_square_p(np.bincount(drawn.numpy(), minlength=len(expected)), expected) > 1e-3
    scores = made.scores[0].gather(1, drawn[:, None])[:, 0].numpy()
    np.testing.assert_allclose(scores, np.log(expected)[drawn.numpy()], atol=2e-4)


@pytest.mark.parametrize("draws", [{}, {"do_sample": True, "top_k": 9, "temperature": 1.2}])
def test_log_z_of_beams_is_exact(model: Any, decoder: Decoder, draws: dict[str, Any]) -> None:
    expected = generate(model, num_beams=3, **draws)
    with attach(model, decoder, head="certified") as attached:
        assert generate(model, num_beams=3, **draws) == expected
        assert attached.head.last is not None
        assert attached.head.last.log_z is not None


def test_one_search_over_the_wire(model: Any, local: LocalDecoder, remote: DecoderClient) -> None:
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
    assert names["best"].shape[0] == names["drawn"].shape[0] == 3
