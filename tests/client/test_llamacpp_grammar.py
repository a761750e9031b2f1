"""Continuations by a grammar, of a decoder and of llama.cpp's own layer."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from logitsieve.client.llamacpp import attach, generate, grammars_of
from logitsieve.grammar import Grammars, Matcher, allowed_ids
from logitsieve.llamacpp import LlamaContext
from tests.client.dense import DenseDecoder
from tests.llamacpp.small_model import Make
from tests.refusals import refused

pytest.importorskip("llguidance", reason="needs the extra grammar")
pytestmark = pytest.mark.usefixtures("llama_wheel")

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": [True, None]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def context(make_gguf: Make) -> Iterator[LlamaContext]:
    with LlamaContext(make_gguf(), sequences=2, positions=256) as context:
        yield context


@pytest.fixture(scope="module")
def grammars(context: LlamaContext) -> Grammars:
    return grammars_of(context)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.3, "seeds": 5, "top_k": 60}], ids=str)
def test_texts_are_of_the_grammar_and_the_best_of_it(
    context: LlamaContext, grammars: Grammars, options: dict[str, Any]
) -> None:
    grammar = grammars.json_schema(SCHEMA)
    asked: dict[str, Any] = {"max_tokens": 60, "grammar": grammar.matcher, **options}
    own = generate(context, ["the", "of"], **asked)
    list(own)
    for text in own.texts:
        read = json.loads(text)
        assert [*read] == ["a", "b"]
        assert read["a"] <= 99
        assert read["b"] in (True, None)
    if not options:
        with attach(context, DenseDecoder(context.gguf.matrix.dense())) as attached:
            ours = attached.generate(["the", "of"], **asked)
            list(ours)
        assert ours.ids == own.ids
        assert ours.counts.scanned < own.counts.scanned


def test_the_best_allowed_is_the_best_of_all_logits_masked(
    context: LlamaContext, grammars: Grammars
) -> None:
    grammar = grammars.regex("[ a-z]{3,9}!")
    matcher: Matcher = grammar.matcher()
    generation = generate(context, "the", max_tokens=12, grammar=grammar.matcher)
    list(generation)
    context.forget()
    logits = context.read(context.tokenize("the"))[0]
    for token in generation.ids[0]:
        allowed = allowed_ids(matcher)
        assert token == allowed[np.argmax(logits[allowed])]
        matcher.accept(token)
        logits = context.step({0: token})[0]


def test_a_grammar_and_bans_that_leave_nothing_name_it(
    context: LlamaContext, grammars: Grammars
) -> None:
    token = context.tokenize("m", begin=False)
    grammar = grammars.regex("m{3}")
    with refused("allowed"):
        list(generate(context, "the", grammar=grammar.matcher, banned=[*range(500)]))
    assert token
