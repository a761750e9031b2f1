import subprocess
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2LMHeadModel

from logitsieve.api.errors import InvalidRequest
from logitsieve.client.huggingface import attach
from tests.client import tiny_models
from tests.client.dense import DenseDecoder, attach_dense, decoder_of, generate, targets_of
from tests.client.tiny_models import EOS, prompts
from tests.refusals import refused

EDITS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 1, "bad_words_ids": [[7], [9, 12]], "min_new_tokens": 4},
    {"suppress_tokens": [-1, *range(3, 120), 4_000], "sequence_bias": [[[200], 2.5], [[5], -1.0]]},
    {"prefix_allowed_tokens_fn": lambda _, ids: [EOS, *range(20 + len(ids), 60)]},
    {"encoder_repetition_penalty": 1.4, "exponential_decay_length_penalty": (3, 1.5)},
    {"forced_bos_token_id": 17, "forced_eos_token_id": EOS, "begin_suppress_tokens": [5, 6]},
]
SEARCHES: list[dict[str, Any]] = [
    {},
    {"num_beams": 4},
    {"do_sample": True, "top_k": 8},
    {"do_sample": True, "top_k": 20, "temperature": 1.4, "num_return_sequences": 2},
    {"do_sample": True, "top_k": 6, "top_p": 0.8, "num_beams": 3},
    {"do_sample": True, "top_h": 0.6, "typical_p": 0.9, "eta_cutoff": 0.01},
]


@pytest.mark.parametrize(
    ("edits", "search"),
    [
        pytest.param(EDITS[i], SEARCHES[j], marks=() if i % 6 == j else pytest.mark.exhaustive)
        for i, j in product(range(len(EDITS)), range(len(SEARCHES)))
        if i % 2 == j % 2
    ],
    ids=lambda options: "+".join(options) or "plain",
)
def test_generate_chooses_alike(model: Any, search: dict[str, Any], edits: dict[str, Any]) -> None:
    expected = generate(model, **search, **edits)
    decoder = decoder_of(model)
    with attach(model, decoder, k=3):
        assert generate(model, **search, **edits) == expected
    assert generate(model, **search, **edits) == expected
    assert len(decoder.asked) > 2  # those of attach


@pytest.mark.parametrize("edits", EDITS, ids=lambda edits: "+".join(edits) or "plain")
def test_without_top_k_the_decoder_draws(model: Any, edits: dict[str, Any]) -> None:
    decoder = decoder_of(model)
    with attach(model, decoder, k=3):
        drawn = generate(model, do_sample=True, top_k=0, **edits)
        assert generate(model, do_sample=True, top_k=0, **edits) == drawn
        torch.manual_seed(12)
        other = model.generate(**prompts(), max_new_tokens=9, do_sample=True, top_k=0, **edits)
    assert other.tolist() != drawn
    assert "sample" in dict(decoder.asked)


def test_the_normalizer_and_the_target_are_the_callers(language_model: Any) -> None:
    decoder = decoder_of(language_model)
    with attach(language_model, decoder, normalizer="lowrank", model="lm", head="sketch"):
        generate(language_model, num_beams=2)
    assert {"", "lowrank"} >= set(targets_of(decoder))
    assert all(spec["model"] == "lm" for _, spec in decoder.asked)
    assert all(spec["head"] == "sketch" for _, spec in decoder.asked)


@pytest.mark.parametrize("model", ["gpt2", "marian"], indirect=True)
def test_parameters_stay_and_come_back(model: Any) -> None:
    layer, state = model.get_output_embeddings(), dict(model.state_dict())
    bias = getattr(model, "final_logits_bias", None)
    attached = attach_dense(model)
    assert model.get_output_embeddings() is attached.head
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.state_dict().keys() == state.keys()
    generate(model, num_beams=2)
    attached.detach()
    attached.detach()
    assert model.get_output_embeddings() is layer
    assert getattr(model, "final_logits_bias", None) is bias
    assert {"generate", "_get_logits_processor", "_reorder_cache"}.isdisjoint(vars(model))
    assert not model._forward_hooks


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"guidance_scale": 1.5, "num_beams": 2}, "guidance_scale"),
        ({"guidance_scale": float("nan")}, "guidance_scale"),
        ({"guidance_scale": 1.5, "repetition_penalty": 1.2}, "logits_processor"),
        ({"prompt_lookup_num_tokens": 2}, "generation_config"),
        ({"assistant_model": "another"}, "assistant_model"),
        ({"cache_implementation": "paged"}, "cache_implementation"),
        ({"custom_generate": print}, "custom_generate"),
        ({"do_sample": True, "top_k": 0, "typical_p": 0.9}, "typical_p"),
        ({"do_sample": True, "top_k": 0, "epsilon_cutoff": 0.01}, "epsilon_cutoff"),
        ({"do_sample": True, "top_k": 0, "eta_cutoff": 0.01}, "eta_cutoff"),
        ({"do_sample": True, "top_k": 0, "num_beams": 2}, "top_k"),
    ],
)
def test_refused_ways_of_decoding(language_model: Any, options: dict[str, Any], field: str) -> None:
    with attach_dense(language_model):
        with refused(field):
            generate(language_model, **options)
        generate(language_model)


def test_continuous_batching_draws_by_itself(language_model: Any) -> None:
    with attach_dense(language_model), refused("model", "continuous batching"):
        language_model.generate_batch([[1, 2, 3]])
    assert "init_continuous_batching" not in vars(language_model)


@pytest.mark.parametrize("wrong", ["weight", "bias", "dim", "size"])
def test_an_index_of_another_matrix_is_refused(wrong: str) -> None:
    model = tiny_models.marian()
    decoder = decoder_of(model)
    weight, bias = {
        "weight": (decoder.weight * 1.01, decoder.bias),
        "bias": (decoder.weight, None),
        "dim": (decoder.weight[:, 1:], decoder.bias),
        "size": (np.tile(decoder.weight, (2, 1)), np.tile(decoder.bias, 2) + 0.1),
    }[wrong]
    with pytest.raises(InvalidRequest):
        attach(model, DenseDecoder(weight, bias))
    assert isinstance(model.get_output_embeddings(), nn.Linear)


class Capped(GPT2LMHeadModel):
    """As Gemma does."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = 30 * torch.tanh(output.logits / 30)
        return output


@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True, "top_k": 0}, {"guidance_scale": 1.5}], ids=str
)
def test_logits_changed_later_are_refused(language_model: Any, options: dict[str, Any]) -> None:
    capped: Any = Capped(language_model.config)
    capped.eval()
    with (
        attach_dense(capped),
        pytest.raises(InvalidRequest, match="logits changed after the output layer"),
    ):
        generate(capped, **options)


def test_models_without_a_linear_output_layer_are_refused(language_model: Any) -> None:
    with pytest.raises(InvalidRequest, match="output embeddings"):
        attach(language_model.transformer, decoder_of(language_model))


def test_without_transformers_the_pip_line_is_shown() -> None:
    script = "import sys; sys.modules['transformers'] = None; import logitsieve.client.huggingface"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "transformers is not installed: pip install " in done.stderr
    assert "'.[huggingface]'" in done.stderr
