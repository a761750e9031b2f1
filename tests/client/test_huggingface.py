from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2LMHeadModel, LogitsProcessor, LogitsProcessorList

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import TopKReply
from logitsieve.client.huggingface import attach
from logitsieve.client.huggingface_processor import KnownLogits
from tests.client import tiny_models
from tests.client.dense import DenseDecoder
from tests.client.tiny_models import EOS, prompts

MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": tiny_models.gpt2,
    "marian": tiny_models.marian,
    "bart": tiny_models.bart,
    "t5": tiny_models.t5,
}


def decoder_of(model: Any) -> DenseDecoder:
    """Over the output layer as `capture` writes it."""
    weight = model.lm_head.weight.detach().numpy().copy()
    bias = getattr(model, "final_logits_bias", torch.zeros(1, len(weight)))[0].numpy().copy()
    return DenseDecoder(weight, bias)


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


@pytest.fixture(scope="module")
def language_model() -> Any:
    return tiny_models.gpt2()


def generate(model: Any, **options: Any) -> list[list[int]]:
    torch.manual_seed(11)
    chosen = {"max_new_tokens": 9, "do_sample": False} | options
    found: list[list[int]] = model.generate(**prompts(), **chosen).tolist()
    return found


EDITS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 1, "bad_words_ids": [[7], [9, 12]], "min_new_tokens": 4},
    {"suppress_tokens": list(range(3, 120)), "sequence_bias": [[[200], 2.5], [[5], -1.0]]},
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
]


@pytest.mark.parametrize("edits", EDITS, ids=lambda edits: "+".join(edits) or "plain")
@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: "+".join(search) or "greedy")
def test_generate_chooses_what_it_chose(
    model: Any, search: dict[str, Any], edits: dict[str, Any]
) -> None:
    expected = generate(model, **search, **edits)
    decoder = decoder_of(model)
    with attach(model, decoder, k=3):
        assert generate(model, **search, **edits) == expected
    assert generate(model, **search, **edits) == expected
    assert len(decoder.asked) > 2  # those of attach


@pytest.mark.parametrize("edits", [EDITS[1], EDITS[4], EDITS[5]], ids="+".join)
def test_without_our_processor_edits_would_change_the_choice(
    language_model: Any, edits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = generate(language_model, **edits)
    with attach(language_model, decoder_of(language_model), k=1) as attached:
        monkeypatch.setattr(KnownLogits, "__call__", lambda self, input_ids, scores: scores)
        assert generate(language_model, **edits) != expected
        assert attached.head.last is not None


def test_log_probabilities_are_those_of_the_full_softmax(model: Any) -> None:
    options = {
        "num_beams": 3,
        "max_new_tokens": 6,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    expected = model.generate(**prompts(), **options)
    with attach(model, decoder_of(model)):
        got = model.generate(**prompts(), **options)
    torch.testing.assert_close(got.sequences_scores, expected.sequences_scores)
    for full, ours in zip(expected.scores, got.scores, strict=True):
        best = full.topk(6).indices
        torch.testing.assert_close(ours.gather(1, best), full.gather(1, best), rtol=0, atol=1e-5)
        torch.testing.assert_close(ours.exp().sum(1), torch.ones(len(ours)))


def test_elsewhere_is_the_mean_of_what_is_missing_or_nothing(language_model: Any) -> None:
    ids = prompts()["input_ids"]
    with torch.no_grad():
        full = language_model(ids).logits
        with attach(language_model, decoder_of(language_model), k=5):
            mean = language_model(ids).logits
        with attach(language_model, decoder_of(language_model), k=5, elsewhere="-inf"):
            none = language_model(ids).logits
    assert mean.shape == none.shape == full.shape
    best = full.topk(5).indices
    for ours in (mean, none):
        torch.testing.assert_close(ours.gather(2, best), full.gather(2, best))
    torch.testing.assert_close(mean.logsumexp(2), full.logsumexp(2))
    assert int(none.isfinite().sum()) == 5 * ids.numel()
    others = mean.scatter(2, best, -torch.inf)
    assert ((others == others.amax(2, keepdim=True)) | others.isinf()).all()


def targets_of(decoder: DenseDecoder) -> list[str]:
    return [target.get("normalizer") or "" for method, target in decoder.asked if method == "topk"]


@pytest.mark.parametrize(
    ("options", "normalizers"),
    [
        ({}, {""}),
        ({"repetition_penalty": 1.2}, {""}),
        ({"num_beams": 2}, {"", "exact"}),
        ({"do_sample": True}, {"", "exact"}),
        ({"output_scores": True}, {"", "exact"}),
    ],
)
def test_greedy_search_asks_for_no_log_z(
    language_model: Any, options: dict[str, Any], normalizers: set[str]
) -> None:
    decoder = decoder_of(language_model)
    with attach(language_model, decoder):
        generate(language_model, **options)
    assert set(targets_of(decoder)) == normalizers


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"typical_p": 0.9}, {"min_p": 0.1}])
def test_sampling_without_top_k_warns(language_model: Any, options: dict[str, Any]) -> None:
    with (
        attach(language_model, decoder_of(language_model)),
        pytest.warns(UserWarning, match=r"set top_k, or draw by decoder\.sample"),
    ):
        generate(language_model, do_sample=True, top_k=0, **options)


def test_the_normalizer_and_the_target_are_the_callers(language_model: Any) -> None:
    decoder = decoder_of(language_model)
    with attach(language_model, decoder, normalizer="lowrank", model="lm", head="certified"):
        generate(language_model, num_beams=2)
    assert {"", "lowrank"} >= set(targets_of(decoder))
    assert all(target["model"] == "lm" for _, target in decoder.asked)
    assert all(target["head"] == "certified" for _, target in decoder.asked)


def test_only_the_last_position_is_computed(model: Any) -> None:
    rows: list[int] = []

    class Watching(DenseDecoder):
        def topk(self, hidden: Any, k: int, **options: Any) -> TopKReply:
            rows.append(len(hidden))
            return super().topk(hidden, k, **options)

    known = decoder_of(model)
    decoder = Watching(known.weight, known.bias)
    source = prompts()
    if model.config.is_encoder_decoder:
        source["decoder_input_ids"] = torch.full((3, 5), 3)
    for use_cache in (True, False):
        with attach(model, decoder):
            rows.clear()
            model.generate(**source, max_new_tokens=4, do_sample=False, use_cache=use_cache)
        assert set(rows) == {3}


@pytest.mark.parametrize("model", ["gpt2", "marian"], indirect=True)
def test_parameters_stay_and_come_back(model: Any) -> None:
    layer, state = model.get_output_embeddings(), dict(model.state_dict())
    bias = getattr(model, "final_logits_bias", None)
    attached = attach(model, decoder_of(model))
    assert model.get_output_embeddings() is attached.head
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.state_dict().keys() == state.keys()
    attached.detach()
    attached.detach()
    assert model.get_output_embeddings() is layer
    assert getattr(model, "final_logits_bias", None) is bias
    assert {"generate", "_get_logits_processor"}.isdisjoint(vars(model))
    assert not model._forward_hooks


def test_half_precision(language_model: Any) -> None:
    model = tiny_models.gpt2().to(torch.bfloat16)
    weight = model.lm_head.weight.detach().float().numpy()
    with torch.no_grad(), attach(model, DenseDecoder(weight), k=4):
        logits = model(prompts()["input_ids"]).logits
    assert logits.dtype == torch.float32
    with torch.no_grad():
        hidden = model.transformer(prompts()["input_ids"]).last_hidden_state
    full = hidden.float() @ torch.from_numpy(weight).T
    best = full.topk(4)
    torch.testing.assert_close(logits.gather(2, best.indices), best.values)


class Raised(LogitsProcessor):
    """One of the user's: id 40 gains 3."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, 40] += 3
        return scores


def test_processors_of_the_users_own_are_named(language_model: Any) -> None:
    options = {"logits_processor": LogitsProcessorList([Raised()])}
    expected = generate(language_model, **options)
    with (
        attach(language_model, decoder_of(language_model)),
        pytest.raises(InvalidRequest, match="Raised"),
    ):
        generate(language_model, **options)
    with attach(language_model, decoder_of(language_model), editors=(Raised,)):
        assert generate(language_model, **options) == expected


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"guidance_scale": 1.5}, "logits_processor"),
        ({"prompt_lookup_num_tokens": 2}, "generation_config"),
        ({"assistant_model": "another"}, "assistant_model"),
    ],
)
def test_ways_of_decoding_that_are_refused(
    language_model: Any, options: dict[str, Any], field: str
) -> None:
    with attach(language_model, decoder_of(language_model)):
        with pytest.raises(InvalidRequest) as raised:
            generate(language_model, **options)
        assert raised.value.field == field
        generate(language_model)


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


class Capped(GPT2LMHeadModel):  # type: ignore[no-untyped-call]
    """As Gemma does."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = 30 * torch.tanh(output.logits / 30)
        return output


def test_logits_changed_after_the_output_layer_are_refused(language_model: Any) -> None:
    capped: Any = Capped(language_model.config)
    capped.eval()
    with (
        attach(capped, decoder_of(capped)),
        pytest.raises(InvalidRequest, match="logits changed after the output layer"),
    ):
        generate(capped)


def test_models_without_a_linear_output_layer_are_refused(language_model: Any) -> None:
    with pytest.raises(InvalidRequest, match="output embeddings"):
        attach(language_model.transformer, decoder_of(language_model))
    with pytest.raises(InvalidRequest, match="elsewhere"):
        attach(language_model, decoder_of(language_model), elsewhere="0")  # type: ignore[arg-type]


def test_without_transformers_the_pip_line_is_shown() -> None:
    script = "import sys; sys.modules['transformers'] = None; import logitsieve.client.huggingface"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "transformers is not installed: pip install 'logitsieve[huggingface]'" in done.stderr


def test_a_penalty_does_not_make_greedy_search_ask_again(language_model: Any) -> None:
    decoder = decoder_of(language_model)
    with attach(language_model, decoder, k=10):
        made = generate(language_model, repetition_penalty=1.1, eos_token_id=None)
    steps = len(made[0]) - prompts()["input_ids"].shape[1]
    assert len(targets_of(decoder)) == 1 + 2 * steps  # attach; the best, and the repeated ones


def test_training_is_refused(language_model: Any) -> None:
    with (
        attach(language_model, decoder_of(language_model)),
        pytest.raises(InvalidRequest, match="no_grad"),
    ):
        language_model(prompts()["input_ids"])
