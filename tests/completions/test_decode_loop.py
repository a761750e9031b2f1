"""The engine without a thread: heads that change, and sequences that share turns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.watermark import WatermarkKey
from logitsieve.client.llamacpp import LlamaContext, PromptLookup, attach
from logitsieve.client.llamacpp_sequences import GenerationOptions
from logitsieve.completions.decode_loop import SLICE, DecodeLoop, Piece, Task, steady_sequences
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.watermark import detect_watermark
from logitsieve.index import open_index
from tests.client.test_llamacpp import write_gguf_index
from tests.llamacpp.small_model import Make

pytestmark = pytest.mark.usefixtures("llama_wheel")


def task(told: list[Any], prompt: list[int], **asked: Any) -> Task:
    given: dict[str, Any] = {"max_tokens": 0, "echo": True, "logprobs": 1, **asked}
    given.setdefault("options", options(max_tokens=9))
    at: dict[str, Any] = {"deadline": float("inf"), "tell": told.append}
    return Task(prompt=prompt, drawing=given["options"].drawing(1), **at, **given)


def options(**given: Any) -> GenerationOptions:
    return GenerationOptions(ignore_end=True, **given)


def test_an_index_takes_over_between_two_requests(make_gguf: Make, gguf_index: Path) -> None:
    told: list[Any] = []
    names = ["dense"]
    with LlamaContext(make_gguf(), separate=True) as context, attach(context, None) as attached:
        engine = DecodeLoop(attached, waiting=2, head_name=lambda: names[0])
        first, second = task(told, [5, 6, 7]), task(told, [5, 6, 7])
        engine.submit([first])
        engine.turn()
        attached.swap(LocalDecoder(open_index(gguf_index)), head="sketch")
        names[0] = "sketch"
        engine.submit([second])
        engine.turn()
    dense, bounded = (piece.tokens for piece in told if isinstance(piece, Piece))
    assert (first.heads, second.heads) == ({"dense"}, {"sketch"})
    assert (first.proven, second.proven) == (0, 2)
    for one, other in zip(dense[1:], bounded[1:], strict=True):
        assert one.log_z is None
        assert other.log_z is not None
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-5)
        assert one.best[0][0] == other.best[0][0]


def test_a_long_prompt_stalls_nobody(make_gguf: Make) -> None:
    context = LlamaContext(make_gguf(), sequences=2, separate=True)
    with context, attach(context, None) as attached:
        engine = DecodeLoop(attached, waiting=2, widths={False: 2})
        short, long, turns = list[Any](), list[Any](), 0
        quick = task(short, [5, 6], max_tokens=3, echo=False, logprobs=None)
        engine.submit([task(long, [7] * (5 * SLICE)), quick])
        while engine.running or engine.waiting:
            engine.turn()
            turns += 1
    assert [short[-1].finish, long[-1].finish] == ["length", "length"]
    assert len(short) == 3
    assert turns == 6  # a slice in each, the second one of the short prompt


EDITS: list[dict[str, Any]] = [
    {},
    {"allowed": range(270, 330)},
    {"logit_bias": {300: 9.0}, "presence_penalty": 1.0},
    {"repetition_penalty": 1.3, "top_k": 20},
]


@pytest.mark.parametrize("sequences", [3, 5, 8])
def test_each_text_is_what_it_is_alone(make_gguf: Make, tmp_path: Path, sequences: int) -> None:
    """Twelve texts of unequal lengths: sequences end and begin again in any order, with gaps."""
    path, rng = make_gguf(body="Q4_1", head="Q4_1"), np.random.default_rng(sequences)
    asked: list[dict[str, Any]] = [
        {
            "prompt": rng.integers(259, 500, rng.integers(1, 2 * SLICE)).tolist(),
            "max_tokens": int(rng.integers(1, 16)),
            "options": options(temperature=place // 4 % 2, seeds=place, **EDITS[place % 4]),
            "logprobs": (1, None, 3)[place % 3],
            "echo": place % 5 == 0,
        }
        for place in range(12)
    ]
    context = LlamaContext(path, sequences=sequences, positions=256 * sequences, separate=True)
    index = open_index(write_gguf_index(context.gguf, tmp_path / "small" / "1"))
    with context, attach(context, LocalDecoder(index), head="sketch") as attached:
        engine = DecodeLoop(attached, waiting=len(asked), widths=steady_sequences(context))
        heard = []
        for at_once in (1, len(asked)):
            told: list[list[Any]] = [[] for _ in asked]
            tasks = [task(news, **one) for news, one in zip(told, asked, strict=True)]
            for start in range(0, len(tasks), at_once):
                engine.submit(tasks[start : start + at_once])
                while engine.running or engine.waiting:
                    engine.turn()
            heard.append(told)
    assert heard[0] == heard[1]
    assert all(news[-1].finish == "length" for news in heard[0])


def test_a_refused_request_ends_alone(make_gguf: Make, tmp_path: Path) -> None:
    """A model that caps its logits is not scored by an index, nor drawn from without top_k."""
    path = make_gguf(architecture="gemma2", tied=True, final_logit_softcapping=5.0)
    context = LlamaContext(path, sequences=3, positions=768, separate=True)
    index = open_index(write_gguf_index(context.gguf, tmp_path / "small" / "1"))
    asked: list[dict[str, Any]] = [{}, {"options": options(temperature=1.0)}, {"logprobs": 1}]
    told: list[list[Any]] = [[] for _ in asked]
    with context, attach(context, LocalDecoder(index), head="sketch") as attached:
        engine = DecodeLoop(attached, waiting=3)
        engine.submit(
            [
                task(news, [5, 6], **{"max_tokens": 4, "echo": False, "logprobs": None, **one})
                for news, one in zip(told, asked, strict=True)
            ]
        )
        while engine.running or engine.waiting:
            engine.turn()
    assert (len(told[0]), told[0][-1].finish) == (4, "length")
    for news, field in zip(told[1:], ("top_k", "logprobs"), strict=True):
        assert [error.field for error in news] == [field]


def test_a_loop_with_a_key_marks_every_draw_and_leaves_greedy_text(make_gguf: Make) -> None:
    key, marked = WatermarkKey(bytes(16)), dict[WatermarkKey | None, list[list[int]]]()
    asked = [options(temperature=1.0, seeds=1), options(temperature=1.0, top_p=0.9), options()]
    for watermark in (None, key):
        context = LlamaContext(make_gguf(), sequences=3, separate=True)
        with context, attach(context, None) as attached:
            engine = DecodeLoop(attached, waiting=3, watermark=watermark)
            told: list[list[Any]] = [[] for _ in asked]
            more: dict[str, Any] = {"max_tokens": 40, "echo": False, "logprobs": None}
            pairs = zip(told, asked, strict=True)
            engine.submit([task(news, [5, 6], options=one, **more) for news, one in pairs])
            while engine.running or engine.waiting:
                engine.turn()
        marked[watermark] = [[one.id for news in texts for one in news.tokens] for texts in told]
    assert all(detect_watermark(key, text).p_value < 1e-6 for text in marked[key][:2])
    assert detect_watermark(key, marked[None][0]).p_value > 1e-3
    assert marked[key][2] == marked[None][2]


def test_drafts_change_nothing_of_what_is_told(make_gguf: Make) -> None:
    """Three sequences with settings of their own, one of them with the prompt's end repeated."""
    repeated = [5, *range(300, 310), *range(300, 310)]
    asked: list[dict[str, Any]] = [
        {"prompt": repeated, "options": {"allowed": range(300, 310)}},
        {"prompt": [7, 8, 9] * 5, "options": {"temperature": 1.0, "seeds": 3, "top_p": 0.9}},
        {"prompt": repeated, "options": {"repetition_penalty": 1.2}, "logprobs": None},
    ]
    heard, right = [], 0
    for drafter in (None, PromptLookup, lambda: lambda text, trusted, most: [text[-1]] * most):
        context = LlamaContext(
            make_gguf(body="Q4_1", head="Q4_1"), sequences=3, positions=768, separate=True
        )
        with context, attach(context, None) as attached:
            engine = DecodeLoop(
                attached, waiting=3, widths=steady_sequences(context), drafter=drafter
            )
            told: list[list[Any]] = [[] for _ in asked]
            engine.submit(
                [
                    task(news, **{"max_tokens": 30, **one, "options": options(**one["options"])})
                    for news, one in zip(told, asked, strict=True)
                ]
            )
            while engine.running or engine.waiting:
                engine.turn()
        heard.append(told)
        right += engine.accepted
        assert engine.accepted <= engine.drafted
    assert heard[0] == heard[1] == heard[2]
    assert right > 0
