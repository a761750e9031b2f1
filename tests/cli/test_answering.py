import re
from pathlib import Path
from typing import Any, cast

import pytest

from logitsieve.api.keywords import ModelSpec
from logitsieve.cli.generate import DENSE, Handover
from logitsieve.client.llamacpp import LlamaContext, attach
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from tests.llamacpp.small_model import Make

pytestmark = pytest.mark.usefixtures("llama_wheel")

PROMPT = "the time of man"
SWAPPED = "2 tokens: .* a second, all 560 logits of each; then 4 tokens: .* 4 tokens proven"


@pytest.fixture
def decoder(gguf_index: Path) -> LocalDecoder:
    return LocalDecoder(open_index(gguf_index))


class Making:
    """A BackgroundIndex whose end the test decides."""

    def __init__(self, **to_be: Any) -> None:
        self.decoder: LocalDecoder | None = None
        self.error, self.seconds, self._to_be = "", 3.0, to_be

    def wait(self) -> None:
        vars(self).update(self._to_be)


def generated(context: LlamaContext, making: Any = None) -> tuple[list[int], Handover, str]:
    """Six tokens, after two of which the index is made: ids, what answers and the cost."""
    with attach(context, None) as attached:
        handover = Handover(attached, None, making, ModelSpec(head=DENSE), threads=1)
        generation = attached.generate(PROMPT, max_tokens=6)
        for number, _ in enumerate(generation):
            if making is not None and number == 1:
                making.wait()
            handover.follow(generation.counts)
        return generation.ids[0], handover, handover.cost(generation.counts, 1)


def test_an_index_answers_once_it_is_made(
    make_gguf: Make, decoder: LocalDecoder, capsys: pytest.CaptureFixture[str]
) -> None:
    with LlamaContext(make_gguf()) as context:
        ids, dense, cost = generated(context)
        assert dense.head == DENSE
        assert "6 tokens: " in cost
        assert "then" not in cost
        dense.end(wait=True)
        assert capsys.readouterr().err == ""
        same, handover, cost = generated(context, Making(decoder=decoder))
        handover.end(wait=False)
    assert same == ids
    assert handover.head == "sketch"
    assert re.fullmatch(SWAPPED, cost)
    said = "The index is made after 3 s: sketch answers from here.\n"
    assert capsys.readouterr().err == said


def test_llama_cpp_answers_without(make_gguf: Make, capsys: pytest.CaptureFixture[str]) -> None:
    with LlamaContext(make_gguf()) as context:
        _, handover, cost = generated(context, Making(error="out of luck"))
    assert handover.head == DENSE
    assert cost.endswith("all 560 logits of each")
    assert capsys.readouterr().err == "No index could be made: out of luck\n"
    making, unused = Making(error="out of luck"), cast(Any, None)
    Handover(unused, None, cast(Any, making), ModelSpec(head=DENSE), threads=1).end(wait=True)
    assert capsys.readouterr().err == "After 3 s the index could not be made: out of luck\n"
