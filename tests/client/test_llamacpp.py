from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.watermark import WatermarkKey
from logitsieve.client.llamacpp import PromptLookup, attach, generate
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.watermark import detect_watermark
from logitsieve.heads import Softmax
from logitsieve.index import open_index
from logitsieve.llamacpp import GgufModel, LlamaContext
from tests.client.dense import DenseDecoder
from tests.llamacpp.small_model import Make
from tests.refusals import refused
from tests.server.running import Loop, config_for, running
from tests.synthetic import write_heads

pytestmark = pytest.mark.usefixtures("llama_wheel")

PROMPTS = ["the time of man", "go back", "it is good and"]


def write_gguf_index(gguf: GgufModel, out: Path) -> Path:
    """An index of the full and the head sketch over a file's matrix."""
    bias = np.zeros(gguf.vocab_size, np.float32) if gguf.bias is None else gguf.bias
    softmax = Softmax(np.array(gguf.matrix.dense()), np.array(bias))
    return write_heads(out, softmax, "sketch")


def dense_of(gguf: GgufModel) -> DenseDecoder:
    return DenseDecoder(gguf.matrix.rows(slice(None)), gguf.bias)


@pytest.fixture(scope="module")
def context(make_gguf: Make) -> Iterator[LlamaContext]:
    with LlamaContext(make_gguf(), sequences=3) as context:
        yield context


@pytest.fixture(scope="module")
def local(gguf_index: Path) -> LocalDecoder:
    return LocalDecoder(open_index(gguf_index))


def run(attached: Any, prompts: Any = PROMPTS, **options: Any) -> list[list[int]]:
    generation = attached.generate(prompts, **{"max_tokens": 12, "ignore_end": True} | options)
    list(generation)
    ids: list[list[int]] = generation.ids
    return ids


OPTIONS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.5, "frequency_penalty": 0.25, "penalized": 8},
    {"banned": [5, 300, 301]},
    {"allowed": range(300, 340)},
    {"allowed": lambda made: [300 + len(made), 310 + len(made)]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "plain")
@pytest.mark.parametrize("head", ["full", "sketch"])
def test_greedy_tokens_are_the_best_in_float64(
    context: LlamaContext, local: LocalDecoder, head: str, options: dict[str, Any]
) -> None:
    with attach(context, dense_of(context.gguf)) as attached:
        expected = run(attached, **options)
    with attach(context, local, head=head) as attached:
        assert run(attached, **options) == expected
    assert len({token for row in expected for token in row}) > 3


def test_tokens_are_llama_cpps_in_float32(context: LlamaContext, local: LocalDecoder) -> None:
    generation = generate(context, PROMPTS, max_tokens=12, ignore_end=True)
    streamed = [token.text for token in generation if token.sequence == 1]
    assert "".join(streamed) == generation.texts[1]
    with attach(context, local) as attached:
        assert run(attached) == generation.ids


KEY = WatermarkKey(bytes(range(16)))


@pytest.mark.parametrize("more", [{}, {"top_k": 30}, {"top_p": 0.9}, {"watermark": KEY}], ids=str)
def test_draws_of_a_seed_are_llama_cpps_in_float32(
    context: LlamaContext, local: LocalDecoder, more: dict[str, Any]
) -> None:
    options = {"max_tokens": 12, "ignore_end": True, "temperature": 1.0, "seeds": 3, **more}
    generation = generate(context, PROMPTS, **options)
    list(generation)
    with attach(context, local) as attached:
        assert run(attached, **options) == generation.ids


def test_keyed_draws_are_detected_whatever_head_drew_them(
    context: LlamaContext, local: LocalDecoder
) -> None:
    asked: dict[str, Any] = {"max_tokens": 60, "temperature": 1.0, "watermark": KEY, "seeds": 1}
    with attach(context, None) as attached:
        generation = attached.generate("go", ignore_end=True, **asked)
        for step, _ in enumerate(generation):
            if step == 30:
                attached.swap(local)
        [marked] = generation.ids
        assert detect_watermark(KEY, marked).p_value < 1e-9
        assert run(attached, "go", drafter=PromptLookup(), **asked) == [marked]
        [plain] = run(attached, "go", **{**asked, "watermark": None})
        assert detect_watermark(KEY, plain).p_value > 1e-3
        assert run(attached, "go", watermark=KEY) == run(attached, "go")


@pytest.mark.parametrize("negative", [None, "it is good", [5, 6]], ids=str)
@pytest.mark.parametrize("more", [{}, {"temperature": 1.0, "seeds": 4}], ids=str)
def test_guided_tokens_are_those_of_the_combined_logits(
    make_gguf: Make, local: LocalDecoder, negative: Any, more: dict[str, Any]
) -> None:
    scale, prompts = 2.5, PROMPTS[:2]
    asked: dict[str, Any] = {"guidance_scale": scale, "negative_prompt": negative, **more}
    with LlamaContext(make_gguf(), sequences=4) as context:
        own = generate(context, prompts, max_tokens=9, ignore_end=True, logprobs=True, **asked)
        list(own)
        with attach(context, local) as attached:
            assert run(attached, prompts, max_tokens=9, **asked) == own.ids
        for prompt, made, log_probs in zip(prompts, own.ids, own.log_probs, strict=True):
            given = context.tokenize(prompt)
            other = given[-1:] if negative is None else negative
            other = context.tokenize(other) if isinstance(other, str) else other
            pair = (context.read_alone(one + made[:-1], headless=False) for one in (given, other))
            rows, negatives = (one[-len(made) :].astype(np.float64) for one in pair)
            rows = negatives + scale * (rows - negatives)
            if not more:
                assert made == rows.argmax(axis=1).tolist()
            exact = rows[range(len(made)), made] - np.logaddexp.reduce(rows, axis=1)
            np.testing.assert_allclose(log_probs, exact, atol=1e-3)


def test_guidance_is_refused_under_a_softcap_and_ends_where_the_cache_is_full(
    make_gguf: Make,
) -> None:
    capped = make_gguf(architecture="gemma2", tied=True, final_logit_softcapping=5.0)
    with LlamaContext(capped, sequences=2) as context, refused("guidance_scale", "caps its logits"):
        generate(context, "go", guidance_scale=1.5)
    for separate in (False, True):
        with LlamaContext(make_gguf(), sequences=2, positions=512, separate=separate) as context:
            asked: dict[str, Any] = {"guidance_scale": 2.0, "negative_prompt": [5] * 250}
            made = generate(context, [6] * 3, max_tokens=500, ignore_end=True, **asked)
            assert len(list(made)) == (7 if separate else 130)


def test_sequences_of_a_batch_are_as_one_by_one(context: LlamaContext, local: LocalDecoder) -> None:
    drawn: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95}
    with attach(context, local) as attached:
        for options in ({}, drawn, {**drawn, "watermark": KEY}):
            together = run(attached, seeds=[1, 2, 3], **options)
            for number, prompt in enumerate(PROMPTS):
                [alone] = run(attached, prompt, seeds=[number + 1], **options)
                assert alone == together[number]


def test_one_call_of_the_decoder_for_all_sequences_none_for_prompts(context: LlamaContext) -> None:
    decoder = dense_of(context.gguf)
    with attach(context, decoder, head="sketch", model="small") as attached:
        decoder.asked.clear()
        generation = attached.generate(PROMPTS, max_tokens=4, ignore_end=True)
        assert len(list(generation)) == 12
    assert decoder.asked == [("topk", {"head": "sketch", "model": "small"})] * 4
    assert generation.counts.tokens == 12
    assert generation.counts.prompt_tokens == sum(len(context.tokenize(one)) for one in PROMPTS)


def test_detach_gives_the_dense_head_back(context: LlamaContext, local: LocalDecoder) -> None:
    context.forget()
    before = context.read([5, 6, 7])
    attached = attach(context, local)
    with pytest.raises(InvalidRequest, match="context: got one with a decoder attached"):
        attach(context, local)
    with pytest.raises(InvalidRequest, match="context: got one with a decoder attached"):
        generate(context, "go")
    begun = attached.generate("go back")
    next(begun)
    attached.detach()
    attached.detach()
    with pytest.raises(InvalidRequest, match="meanwhile"):
        list(begun)
    with pytest.raises(InvalidRequest, match="detached"):
        attached.generate("go")
    context.forget()
    np.testing.assert_array_equal(context.read([5, 6, 7]), before)


@pytest.mark.parametrize("begun", ["llama.cpp", "dense"])
def test_decoders_swap_midway(context: LlamaContext, local: LocalDecoder, begun: str) -> None:
    with attach(context, local) as attached:
        expected = run(attached)
    first = None if begun == "llama.cpp" else dense_of(context.gguf)
    with attach(context, first) as attached:
        generation = attached.generate(PROMPTS, max_tokens=12, ignore_end=True)
        for _ in range(4):  # into the second of three sequences
            next(generation)
        before = generation.counts.proven
        attached.swap(local, head="sketch")
        list(generation)
        assert generation.ids == expected
        assert generation.counts.proven == before + 3 * 10
        with pytest.raises(InvalidRequest, match="away from the model's own"):
            attached.swap(DenseDecoder(np.ones(context.gguf.matrix.shape)))
        assert run(attached) == expected
    assert not context.headless


def test_an_index_of_another_matrix_is_refused(
    context: LlamaContext, make_gguf: Make, tmp_path: Path
) -> None:
    other = GgufModel(make_gguf(seed=1))
    wide = GgufModel(make_gguf(dim=128))
    biased = GgufModel(make_gguf(bias=True))
    for number, gguf in enumerate((other, wide, biased)):
        path = write_gguf_index(gguf, tmp_path / f"m{number}" / "1")
        with pytest.raises(InvalidRequest, match="decoder: got an index of"):
            attach(context, LocalDecoder(open_index(path)))
    with pytest.raises(InvalidRequest, match="away from the model's own"):
        attach(context, dense_of(other))
    assert not context.headless


def test_by_a_channel(context: LlamaContext, gguf_index: Path, local: Any, loop: Loop) -> None:
    with attach(context, local) as attached:
        expected = run(attached), run(attached, temperature=1.0, seeds=3)
    with (
        running(loop, config_for(gguf_index.parents[1])) as server,
        attach(context, server.client, head="sketch") as attached,
    ):
        assert (run(attached), run(attached, temperature=1.0, seeds=3)) == expected


def test_a_context_that_was_made_elsewhere_is_refused(local: LocalDecoder) -> None:
    """As that of llama-cpp-python: no callback can be given to it any more."""

    class Llama:
        pass

    made: Any = Llama()
    with pytest.raises(InvalidRequest, match=r"context: got .*\.Llama, allowed: a LlamaContext"):
        attach(made, local)
