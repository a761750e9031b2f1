"""The engine without a thread: heads that change, and sequences that share turns."""

from pathlib import Path
from typing import Any

import pytest

from logitsieve.client.llamacpp import LlamaContext, attach
from logitsieve.client.llamacpp_sequences import GenerationOptions
from logitsieve.completions.engine import SLICE, Engine, Piece, Task
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.llamacpp import GgufModel
from tests.client.test_llamacpp import write_gguf_index
from tests.llamacpp.small_model import Make

pytestmark = pytest.mark.usefixtures("llama_wheel")


def task(told: list[Any], prompt: list[int], **options: Any) -> Task:
    given: dict[str, Any] = {"max_tokens": 0, "echo": True, "logprobs": 1, **options}
    greedy = GenerationOptions(max_tokens=9, ignore_end=True)
    at: dict[str, Any] = {"drawing": None, "deadline": float("inf"), "tell": told.append}
    return Task(prompt=prompt, options=greedy, **at, **given)


def test_an_index_takes_over_between_two_requests(make_gguf: Make, tmp_path: Path) -> None:
    index = write_gguf_index(GgufModel(make_gguf()), tmp_path / "small" / "1")
    told: list[Any] = []

    names = ["dense"]
    with LlamaContext(make_gguf(), separate=True) as context, attach(context, None) as attached:
        engine = Engine(attached, waiting=2, head_name=lambda: names[0])
        first, second = task(told, [5, 6, 7]), task(told, [5, 6, 7])
        engine.submit([first])
        engine.turn()
        attached.swap(LocalDecoder(open_index(index)), head="certified")
        names[0] = "certified"
        engine.submit([second])
        engine.turn()
    dense, certified = (piece.tokens for piece in told if isinstance(piece, Piece))
    assert (first.heads, second.heads) == ({"dense"}, {"certified"})
    assert (first.proven, second.proven) == (0, 2)
    for one, other in zip(dense[1:], certified[1:], strict=True):
        assert one.log_z is None
        assert other.log_z is not None
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-5)
        assert one.best[0][0] == other.best[0][0]


def test_a_long_prompt_stalls_nobody(make_gguf: Make) -> None:
    context = LlamaContext(make_gguf(), sequences=2, separate=True)
    with context, attach(context, None) as attached:
        engine = Engine(attached, waiting=2, width=2)
        short, long, turns = list[Any](), list[Any](), 0
        quick = task(short, [5, 6], max_tokens=3, echo=False, logprobs=None)
        engine.submit([task(long, [7] * (5 * SLICE)), quick])
        while engine.running or engine.waiting:
            engine.turn()
            turns += 1
    assert [short[-1].finish, long[-1].finish] == ["length", "length"]
    assert len(short) == 3
    assert turns == 6  # a slice in each, the second one of the short prompt
