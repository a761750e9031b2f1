from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.client.llamacpp import LlamaAttachment, PromptLookup, generate
from logitsieve.client.llamacpp_heads import DecoderOutput
from logitsieve.client.llamacpp_sequences import Continuation, GenerationOptions, choose
from logitsieve.llamacpp import LlamaContext
from tests.client.dense import DenseDecoder
from tests.llamacpp.small_model import END, Make

pytestmark = pytest.mark.usefixtures("llama_wheel")


@pytest.fixture(scope="module")
def context(make_gguf: Make) -> Iterator[LlamaContext]:
    with LlamaContext(make_gguf(), sequences=2, positions=256) as context:
        yield context


BAD: dict[str, dict[str, Any]] = {
    "prompts: got one of no tokens": {"prompts": [[5], []]},
    "prompts: got 0 prompts": {"prompts": []},
    "prompts: got 3 prompts, allowed: 1 to 2": {"prompts": ["the", "of", "and"]},
    "prompts: got 300 tokens": {"prompts": [5] * 300},
    "prompts: got 560": {"prompts": [5, 560]},
    "max_tokens: got 0": {"max_tokens": 0},
    "penalized: got -1": {"penalized": -1},
    "banned: got 560": {"banned": [3, 560]},
    "allowed: got -1": {"allowed": [-1]},
    "logit_bias: got 560": {"logit_bias": {560: 1.0}},
    "logit_bias.5: got nan": {"logit_bias": {5: float("nan")}},
    "repetition_penalty: got 0": {"repetition_penalty": 0},
    "presence_penalty: got nan": {"presence_penalty": float("nan")},
    "frequency_penalty: got inf": {"frequency_penalty": float("inf")},
    "temperature": {"temperature": -1.0},
    "top_p": {"top_p": 0.0},
    "seeds": {"seeds": [1, 2, 3], "temperature": 1.0},
    "guidance_scale: got nan": {"guidance_scale": float("nan")},
    "negative_prompt: got one, allowed: none where": {"negative_prompt": "of"},
    "negative_prompt: got 560": {"guidance_scale": 2, "negative_prompt": [560]},
    "prompts: got 4 prompts, allowed: 1 to 2": {"prompts": ["the", "of"], "guidance_scale": 2},
    "drafter: got one for 2": {"guidance_scale": 2, "drafter": PromptLookup()},
    "stop: got 'go', allowed: a list of texts": {"stop": "go"},
    "stop: got": {"stop": ["go", ""]},
    "text that UTF-8 can hold": {"prompts": "\ud800"},
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_input_is_named_before_anything_is_decoded(context: LlamaContext, reason: str) -> None:
    context.forget()
    context.read([5, 6, 7], 1)
    options = {"prompts": "the"} | BAD[reason]
    with pytest.raises(InvalidRequest, match=reason):
        generate(context, options.pop("prompts"), **options)
    assert context.length(1) == 3


def test_a_sequence_ends_by_its_last_token_and_others_go_on(context: LlamaContext) -> None:
    def allowed(made: Any) -> list[int]:
        return [END] if len(made) == 2 else [300]

    generation = generate(context, ["the", "of"], max_tokens=5, allowed=allowed)
    tokens = list(generation)
    assert generation.ids == [[300, 300, END]] * 2
    assert (
        generation.texts == [" m m"] * 2 == ["".join(t.text for t in tokens if not t.sequence)] * 2
    )
    longer = generate(context, "the", max_tokens=5, allowed=allowed, ignore_end=True)
    assert [token.id for token in longer] == [300, 300, END, 300, 300]


def test_a_text_that_stops_a_sequence_is_cut_off(context: LlamaContext) -> None:
    """Tokens are ` m`; what may begin a stop text is held back until more is known, or the end."""
    options: dict[str, Any] = {"max_tokens": 4, "allowed": [300], "ignore_end": True}
    for stop, shown in {
        "m m": [" "],
        " m m m": ["", "", ""],
        "m mx": [" ", "", "m ", "m m m"],
        "nothing": [" m", " m", " m", " m"],
    }.items():
        generation = generate(context, "the", stop=["other", stop], **options)
        tokens = [token.text for token in generation]
        assert "".join(tokens) == generation.texts[0] == (" m" * 4).split(stop)[0]
        assert len(generation.ids[0]) == len(tokens)
        if stop != "m m":
            assert tokens == shown
    several = generate(context, ["the", "of"], stop=["m"], **options)
    assert [token.text for token in several] == [" ", " "]


def test_log_probabilities_are_those_of_the_logits(context: LlamaContext) -> None:
    options: dict[str, Any] = {"max_tokens": 3, "banned": [7], "ignore_end": True}
    assert generate(context, "the", **options).log_probs == [[]]
    generation = generate(context, "the", logprobs=True, temperature=0.5, seeds=1, **options)
    list(generation)
    context.forget()
    rows = [context.read(context.tokenize("the"))]
    rows += [context.step({0: token}) for token in generation.ids[0][:2]]
    for row, token, found in zip(rows, generation.ids[0], generation.log_probs[0], strict=True):
        logits = row[0].astype(np.float64)
        assert found == pytest.approx(logits[token] - np.logaddexp.reduce(logits), abs=1e-6)


def test_characters_come_whole_and_it_ends_where_the_cache_is_full(context: LlamaContext) -> None:
    octets = [3 + byte for byte in "日é".encode()]
    generation = generate(context, "the", max_tokens=5, allowed=lambda made: [octets[len(made)]])
    assert [token.text for token in generation] == ["", "", "日", "", "é"]
    generation = generate(context, "the", max_tokens=2, allowed=lambda made: [octets[len(made)]])
    assert [token.text for token in generation] == ["", "\ufffd"]
    generation = generate(context, [5] * 250, max_tokens=50, ignore_end=True)
    assert len(list(generation)) == 7


def test_a_grammar_lists_ids(context: LlamaContext) -> None:
    with pytest.raises(InvalidRequest, match="allowed: got a function that returned None"):
        next(generate(context, "the", allowed=lambda made: None))
    with pytest.raises(InvalidRequest, match="allowed: got no id that is not banned"):
        next(generate(context, "the", allowed=[300], banned=[300]))


def test_an_allow_list_is_of_its_sequence_alone(context: LlamaContext) -> None:
    weight = np.eye(400, 8, dtype=np.float32)
    rows = np.tile(np.arange(8, dtype=np.float32), (3, 1))
    head = DecoderOutput(DenseDecoder(weight), {}, 400, None)
    each = [
        Continuation(context, 0, [5], GenerationOptions(allowed=allowed), None)
        for allowed in (None, [3, 4], lambda made: [2])
    ]
    assert choose(head, rows, each).ids.tolist() == [7, 4, 2]


def test_penalties_count_the_last_tokens() -> None:
    options = GenerationOptions(
        repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25, penalized=3
    )
    edits = options.edits([9, 5], [6, 5])
    assert edits.bias == {5: -1.0, 6: -0.75}
    assert sorted(edits.repeated) == [5, 6]
    assert edits.repetition_penalty == 1.5
    assert GenerationOptions(penalized=0, presence_penalty=1.0).edits([9], [5]).bias == {}


def test_tokens_that_the_file_suppresses_are_never_chosen(make_gguf: Make) -> None:
    with LlamaContext(make_gguf()) as plain:
        chosen = generate(plain, "the time", max_tokens=9, ignore_end=True)
        list(chosen)
    listed = sorted({*chosen.ids[0]})
    path = make_gguf(keys=(("tokenizer.ggml.suppress_tokens", [*listed, 1 << 20]),))
    with LlamaContext(path) as context:
        weight = context.gguf.matrix.rows(slice(None))
        head = LlamaAttachment(context, DecoderOutput(DenseDecoder(weight), {}, len(weight), None))
        others = head.generate("the time", max_tokens=9, ignore_end=True)
        list(others)
        head.detach()
        own = generate(context, "the time", max_tokens=9, ignore_end=True)
        list(own)
    assert own.ids == others.ids
    assert not {*own.ids[0]} & {*listed}
