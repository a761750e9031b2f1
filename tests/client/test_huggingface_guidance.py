from itertools import product
from typing import Any

import pytest
import torch

from tests.client import tiny_models
from tests.client.dense import attach_dense, generate
from tests.client.tiny_models import prompts
from tests.refusals import refused

NEGATIVE = torch.randint(2, 400, (3, 4), generator=torch.Generator().manual_seed(7))
GUIDED: list[dict[str, Any]] = [
    {"guidance_scale": 1.5},
    {"guidance_scale": 3, "negative_prompt_ids": NEGATIVE},
    {
        "guidance_scale": -0.5,
        "negative_prompt_ids": NEGATIVE,
        "negative_prompt_attention_mask": torch.tensor([[0, 1, 1, 1]] * 3),
        "use_cache": False,
    },
]
SEARCHES: list[dict[str, Any]] = [
    {},
    {"bad_words_ids": [[7], [9, 12]], "sequence_bias": [[[200], 2.5]], "min_new_tokens": 4},
    {"do_sample": True, "top_k": 8, "temperature": 1.4},
    {"do_sample": True, "top_k": 30, "top_p": 0.8},
]


@pytest.mark.parametrize(("guided", "search"), [*product(GUIDED, SEARCHES)], ids=str)
def test_guided_ids_are_hugging_faces(
    language_model: Any, guided: dict[str, Any], search: dict[str, Any]
) -> None:
    expected = generate(language_model, **guided, **search)
    assert expected != generate(language_model, **search)
    with attach_dense(language_model, k=3):
        assert generate(language_model, **guided, **search) == expected
        plain = generate(language_model, **search)
    assert plain == generate(language_model, **search)


@pytest.mark.parametrize("search", [{}, {"do_sample": True, "top_k": 0, "top_p": 0.9}], ids=str)
def test_scores_and_logits_are_the_guided_ones(language_model: Any, search: dict[str, Any]) -> None:
    """For the ids that `generate` returns, also drawn ones; by two plain calls of the model."""
    scale, kept = (
        2.5,
        {"return_dict_in_generate": True, "output_scores": True, "output_logits": True},
    )
    guided: dict[str, Any] = {"guidance_scale": scale, "negative_prompt_ids": NEGATIVE, **kept}
    with attach_dense(language_model, k=3):
        torch.manual_seed(3)
        made = language_model.generate(**prompts(), max_new_tokens=5, **guided, **search)
    new = made.sequences[:, 6:]
    for step in range(new.shape[1]):
        with torch.no_grad():
            given, negative = (
                language_model(torch.cat([before, new[:, :step]], 1)).logits[:, -1].double()
                for before in (prompts()["input_ids"], NEGATIVE)
            )
        logits = negative + scale * (given - negative)
        for row in range(3):
            one = int(new[row, step])
            if (new[row, :step] == tiny_models.EOS).any():
                continue
            assert float(made.logits[step][row, one]) == pytest.approx(
                float(logits[row, one]), rel=1e-4
            )
            order = logits[row].sort(descending=True)
            mass = order.values.softmax(0).cumsum(0) - order.values.softmax(0)
            left = order.values[mass < search.get("top_p", 1.0)]
            if search:
                found = float(made.scores[step][row, one])
                assert found == pytest.approx(float(logits[row, one] - left.logsumexp(0)), abs=1e-3)


def test_a_model_with_an_encoder_is_refused() -> None:
    model = tiny_models.t5()
    with attach_dense(model), refused("guidance_scale", "1 for a model with an encoder"):
        generate(model, guidance_scale=1.5)
