from pathlib import Path
from typing import Any

import pytest
import torch

from logitsieve.client.huggingface import attach
from logitsieve.decoding import LocalDecoder
from logitsieve.heads import Softmax
from logitsieve.index import open_index
from tests.client import tiny_models
from tests.client.tiny_models import prompts
from tests.synthetic import write_heads


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_models.gpt2()


@pytest.fixture(scope="module")
def path(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    weight = model.lm_head.weight.detach().numpy().copy()
    softmax = Softmax(weight, torch.zeros(len(weight)).numpy())
    return write_heads(tmp_path_factory.mktemp("gpu") / "lm" / "1", softmax)


@pytest.fixture(scope="module")
def decoder(path: Path) -> LocalDecoder:
    return LocalDecoder(open_index(path, device="cuda"))


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": False},
        {"do_sample": False, "num_beams": 2},
        {"do_sample": True, "top_k": 4},
        {"do_sample": False, "repetition_penalty": 1.3},
    ],
)
def test_generate_is_as_before(model: Any, decoder: LocalDecoder, options: dict[str, Any]) -> None:
    def generate() -> Any:
        torch.manual_seed(5)
        return model.generate(**prompts(), max_new_tokens=2, **options).tolist()

    plain = generate()
    with attach(model, decoder, k=6) as attachment:
        assert generate() == plain
        assert attachment.head.last is not None
    assert decoder.takes_tensors


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"repetition_penalty": 1.3}])
def test_generate_draws_what_the_host_draws(
    model: Any, decoder: LocalDecoder, path: Path, options: dict[str, Any]
) -> None:
    def generate(decoder: LocalDecoder) -> Any:
        torch.manual_seed(5)
        sampling = {"max_new_tokens": 2, "do_sample": True, "top_k": 0, **options}
        with attach(model, decoder):
            return model.generate(**prompts(), **sampling).tolist()

    assert generate(decoder) == generate(LocalDecoder(open_index(path)))
