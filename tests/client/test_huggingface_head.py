from typing import Any

import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import TopKReply
from logitsieve.client.huggingface import attach
from tests.client import tiny_models
from tests.client.dense import DenseDecoder, attach_dense, decoder_of, generate, targets_of
from tests.client.tiny_models import prompts


def test_log_probabilities_are_those_of_the_full_softmax(model: Any) -> None:
    options = {"num_beams": 3, "max_new_tokens": 6}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    expected = model.generate(**prompts(), **options)
    with attach_dense(model):
        got = model.generate(**prompts(), **options)
    torch.testing.assert_close(got.sequences_scores, expected.sequences_scores)
    for full, ours in zip(expected.scores, got.scores, strict=True):
        best = full.topk(6).indices
        torch.testing.assert_close(ours.gather(1, best), full.gather(1, best), rtol=0, atol=1e-5)
        torch.testing.assert_close(ours.exp().sum(1), torch.ones(len(ours)))


@pytest.mark.parametrize("beams", [1, 3])
def test_log_probabilities_are_right_after_bans_too(language_model: Any, beams: int) -> None:
    with torch.no_grad():
        best = language_model(**prompts()).logits[:, -1].topk(30).indices
    options: dict[str, Any] = {"suppress_tokens": best[:, ::2].flatten().tolist()}
    options |= {"return_dict_in_generate": True, "output_scores": True, "num_beams": beams}
    expected = language_model.generate(**prompts(), **options, max_new_tokens=4)
    with attach_dense(language_model, k=5):
        got = language_model.generate(**prompts(), **options, max_new_tokens=4)
    assert torch.equal(got.sequences, expected.sequences)
    for full, ours in zip(expected.scores, got.scores, strict=True):
        first = full.argmax(1, keepdim=True)
        found, right = (scores.log_softmax(1).gather(1, first) for scores in (ours, full))
        torch.testing.assert_close(found, right)


def test_bans_among_the_best_are_asked_about_once(language_model: Any) -> None:
    with torch.no_grad():
        best = language_model(**prompts()).logits[:, -1].topk(8).indices.unique().tolist()
    decoder = decoder_of(language_model)
    with attach(language_model, decoder, k=8):
        made = generate(language_model, suppress_tokens=best, num_beams=4, eos_token_id=None)
    steps = len(made[0]) - prompts()["input_ids"].shape[1]
    assert targets_of(decoder).count("approximate") == steps
    assert len(targets_of(decoder)) - 1 - steps < steps / 2  # fewer than one step in two


def test_elsewhere_is_the_mean_of_what_is_missing(language_model: Any) -> None:
    ids = prompts()["input_ids"]
    with torch.no_grad():
        full = language_model(ids).logits
        with attach_dense(language_model, k=5):
            mean = language_model(ids).logits
    assert mean.shape == full.shape
    best = full.topk(5).indices
    torch.testing.assert_close(mean.gather(2, best), full.gather(2, best))
    torch.testing.assert_close(mean.logsumexp(2), full.logsumexp(2))
    others = mean.scatter(2, best, -torch.inf)
    assert ((others == others.amax(2, keepdim=True)) | others.isinf()).all()


@pytest.mark.parametrize(
    ("options", "normalizers"),
    [
        ({}, {""}),
        ({"repetition_penalty": 1.2}, {""}),
        ({"num_beams": 2}, {"", "approximate"}),
        ({"do_sample": True}, {""}),
        ({"do_sample": True, "num_beams": 2}, {"", "approximate"}),
        ({"do_sample": True, "output_logits": True}, {"", "full"}),
        ({"do_sample": True, "top_k": 0}, {""}),
        ({"output_scores": True}, {"", "full"}),
    ],
)
def test_greedy_search_asks_for_no_log_z(
    language_model: Any, options: dict[str, Any], normalizers: set[str]
) -> None:
    decoder = decoder_of(language_model)
    with attach(language_model, decoder):
        generate(language_model, **options)
    assert set(targets_of(decoder)) == normalizers


@pytest.mark.parametrize("spec", [{"exact": True}, {"max_error": 0}, {"head": "full"}])
def test_beams_keep_a_promise_by_an_exact_log_z(language_model: Any, spec: Any) -> None:
    decoder = decoder_of(language_model)
    with attach(language_model, decoder, **spec):
        generate(language_model, num_beams=2)
    assert set(targets_of(decoder)) == {"", "full"}


def test_a_width_goes_with_log_z_alone(language_model: Any) -> None:
    decoder = decoder_of(language_model)
    with attach(language_model, decoder, width=1e-4):
        del decoder.asked[:]
        generate(language_model)
        generate(language_model, do_sample=True, top_k=0)
        assert {spec["width"] for _, spec in decoder.asked} == {None}
        generate(language_model, num_beams=2)
        assert decoder.asked[-1][1]["width"] == 1e-4


def test_only_the_last_position_is_computed(model: Any) -> None:
    rows: list[int] = []

    class Watching(DenseDecoder):
        def topk(self, hidden_states: Any, k: int, **options: Any) -> TopKReply:
            rows.append(len(hidden_states))
            return super().topk(hidden_states, k, **options)

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


def test_half_precision(language_model: Any) -> None:
    model = tiny_models.gpt2().to(torch.bfloat16)
    weight = model.lm_head.weight.detach().float().numpy()
    with torch.no_grad(), attach(model, DenseDecoder(weight), k=4):
        logits = model(prompts()["input_ids"]).logits
    assert logits.dtype == torch.float32
    with torch.no_grad():
        hidden_states = model.transformer(prompts()["input_ids"]).last_hidden_state
    full = hidden_states.float() @ torch.from_numpy(weight).T
    best = full.topk(4)
    torch.testing.assert_close(logits.gather(2, best.indices), best.values)


def test_a_penalty_does_not_make_greedy_search_ask_again(language_model: Any) -> None:
    decoder = decoder_of(language_model)
    with attach(language_model, decoder, k=10):
        made = generate(language_model, repetition_penalty=1.1, eos_token_id=None)
    steps = len(made[0]) - prompts()["input_ids"].shape[1]
    assert len(targets_of(decoder)) == 1 + 2 * steps  # attach; the best, and the repeated ones


def test_training_is_refused(language_model: Any) -> None:
    with attach_dense(language_model), pytest.raises(InvalidRequest, match="no_grad"):
        language_model(prompts()["input_ids"])
