"""Log-probabilities against float64 W h, by the endpoint's own tokens and bits."""

from typing import Any

import numpy as np
import pytest

from logitsieve.client.llamacpp import LlamaAttachment
from logitsieve.completions.decode_loop import SLICE, steady_sequences
from logitsieve.llamacpp import LlamaContext
from tests.client import dense
from tests.completions.conftest import Client
from tests.llamacpp.small_model import POSITIONS, TEXT, Make

pytestmark = pytest.mark.usefixtures("llama_wheel")

PROMPTS = [TEXT[:60], TEXT[100:450], "the", TEXT[30:300], TEXT[500:540]]
SCORED = {"echo": True, "logprobs": 3, "max_tokens": 1, "temperature": 0}
MOST_ERROR = 2.0**-21  # of a log-probability: float32 rounds, and so does the interval's middle


def log_softmax(context: LlamaContext, prompt: list[int]) -> np.ndarray:
    """float64 log-probabilities [T, V] after each token, from hidden states of an own sequence."""
    context.headless = True
    context.forget(0)
    slices = [prompt[start : start + SLICE] for start in range(0, len(prompt), SLICE)]
    hidden_states = np.concatenate([context.read(part, 0, every=True) for part in slices])
    weight = context.gguf.matrix.rows(slice(None)).astype(np.float64)
    logits = hidden_states.astype(np.float64) @ weight.T
    return dense.log_softmax(logits)


def test_prompts_are_scored_as_by_float64(client: Client, attached: LlamaAttachment) -> None:
    context = attached.context
    for prompt in PROMPTS:
        [choice] = client.completion(prompt=prompt, **SCORED)["choices"]
        ids = context.tokenize(prompt)
        expected = log_softmax(context, ids)
        logprobs = choice["logprobs"]
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        assert len(logprobs["tokens"]) == len(ids) + 1
        for place, token in enumerate(ids[1:], start=1):
            found, best = logprobs["token_logprobs"][place], logprobs["top_logprobs"][place]
            row = expected[place - 1]
            assert abs(found - row[token]) <= MOST_ERROR * abs(row[token])
            assert (found == max(best.values())) == (token == row.argmax())
            assert max(best.values()) == pytest.approx(row.max(), rel=MOST_ERROR)
        assert choice["text"].startswith(prompt)


def test_bits_do_not_depend_on_the_batch(client: Client) -> None:
    alone = [client.completion(prompt=prompt, **SCORED)["choices"][0] for prompt in PROMPTS]
    for count in (2, 5):
        together = client.completion(prompt=PROMPTS[:count], **SCORED)["choices"]
        for one, other in zip(alone, together, strict=False):
            assert one["logprobs"] == other["logprobs"]
            assert one["text"] == other["text"]


def test_ids_are_scored_like_their_text(client: Client, attached: LlamaAttachment) -> None:
    ids = [attached.context.tokenize(prompt) for prompt in PROMPTS]
    options = SCORED | {"max_tokens": 0}
    by_text = client.completion(prompt=PROMPTS, **options)["choices"]
    by_ids = client.completion(prompt=ids, **options)["choices"]
    one = client.completion(prompt=ids[0], **options)["choices"]
    for text, each in zip(by_text, by_ids, strict=True):
        assert text["logprobs"]["token_logprobs"] == each["logprobs"]["token_logprobs"]
        assert text["finish_reason"] == "length"
        offsets = each["logprobs"]["text_offset"]
        ends = [*offsets[1:], len(each["text"])]
        pieces = [each["text"][start:end] for start, end in zip(offsets, ends, strict=True)]
        assert pieces == each["logprobs"]["tokens"]
    assert one[0]["logprobs"] == by_ids[0]["logprobs"]


def test_the_truth_beyond_openais_interface(client: Client) -> None:
    made = client.completion(prompt="the time", **SCORED)
    [facts] = made["logitsieve"]["choices"]
    assert made["logitsieve"]["index"] == "hash"
    assert facts["proven"] is True
    assert facts["heads"] == ["sketch"]
    assert 0 < facts["rows"] <= 560
    assert facts["log_z"][0] is None
    assert all(low <= high < low + 1e-5 for low, high in facts["log_z"][1:])
    assert made["usage"] == {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_cells_of_other_sequences_change_no_bit(make_gguf: Make, kind: str) -> None:
    path = make_gguf(head=kind)
    with LlamaContext(path, sequences=3, positions=3 * POSITIONS, separate=True) as context:
        context.headless = True
        prompt = (context.tokenize(TEXT) * 4)[:300]
        parts = [prompt[start : start + SLICE] for start in range(0, len(prompt), SLICE)]

        def read() -> Any:
            return np.concatenate([context.read(part, 0, every=True) for part in parts])

        alone = read()
        context.forget()
        context.read(prompt[:290], 1)
        context.read(prompt[5:30], 2)
        assert np.array_equal(read(), alone)
        assert context.room(0) == context.positions // 3 - 300
        dense, headless = steady_sequences(context).values()
        assert 1 <= dense <= headless <= 3  # logits may hide bits of hidden_states, in some steps
