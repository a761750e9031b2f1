"""Drafts change no byte, whoever makes them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.client.llamacpp import Generation, PromptLookup, attach, generate
from logitsieve.client.llamacpp_sequences import LONGEST, MOST_DRAFTS, SHORTEST, Drafter
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.llamacpp import LlamaContext
from tests.client.test_llamacpp import write_gguf_index
from tests.grammar.masks import Masks
from tests.llamacpp.small_model import END, Make

pytestmark = pytest.mark.usefixtures("llama_wheel")

STEADY = dict.fromkeys(("body", "head"), "Q4_1")  # multiplied row by row, unlike F32
PROMPT = [1, *(300, 301, 302, 303, 310, 311) * 4, 300, 301]


@pytest.fixture(scope="module", params=[STEADY, {}], ids=["Q4_1", "F32"])
def context(request: pytest.FixtureRequest, make_gguf: Make) -> Iterator[LlamaContext]:
    with LlamaContext(make_gguf(**request.param), positions=256) as context:
        yield context


class Oracle:
    """Knows the text; `spoil` makes some of its drafts wrong, and some too long."""

    def __init__(self, text: Sequence[int], spoil: float = 0.0) -> None:
        self.text, self.spoil, self.rng = list(text), spoil, np.random.default_rng(0)

    def __call__(self, text: Sequence[int], trusted: int, most: int) -> Sequence[int]:
        drafts = self.text[len(text) :]
        for place in range(min(len(drafts), MOST_DRAFTS)):
            if self.rng.random() < self.spoil:
                drafts[place] = END if place % 2 else (drafts[place] + 1) % 560
        return drafts if self.spoil else drafts[:most]


def bad(text: Sequence[int], trusted: int, most: int) -> Sequence[int]:
    return [(text[-1] * 7 + len(text)) % 560] * most


SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seeds": 3, "logprobs": True},
    "filters": {"temperature": 1.5, "top_p": 0.8, "top_k": 50, "min_p": 0.01, "seeds": 2**63},
    "penalties": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "penalized": 8,
        "logprobs": True,
    },
    "sampled under edits": {
        "temperature": 0.7,
        "seeds": 5,
        "repetition_penalty": 1.2,
        "banned": range(3, 100),
        "logit_bias": {301: 4.0, END: 6.0},
    },
    "stopped": {"temperature": 1.0, "seeds": 1, "stop": ["e", "th of"], "ignore_end": True},
    "copies": {"allowed": lambda made: [PROMPT[-24 + len(made) % 6]], "logprobs": True},
    "the cache is full": {"max_tokens": 500, "ignore_end": True, "temperature": 0.5, "seeds": 9},
}


def made(generation: Generation) -> tuple[Any, ...]:
    return list(generation), generation.ids, generation.texts, generation.log_probs


@pytest.mark.parametrize("setting", SETTINGS)
def test_drafts_change_no_byte(context: LlamaContext, setting: str) -> None:
    options = {"max_tokens": 40, **SETTINGS[setting]}
    plain = generate(context, PROMPT, **options)
    expected, length = made(plain), context.length(0)
    assert plain.counts.drafted == 0
    text = [*PROMPT, *plain.ids[0]]
    drafters: dict[str, Drafter] = {
        "lookup": PromptLookup(),
        "bad": bad,
        "adversarial": Oracle(text, spoil=0.3),
        "right": Oracle(text),
    }
    for name, drafter in drafters.items():
        ahead = generate(context, PROMPT, drafter=drafter, **options)
        assert made(ahead) == expected, name
        assert context.length(0) == length
        counts = ahead.counts
        assert 0 <= counts.accepted <= counts.drafted
        if name == "right":
            assert counts.drafted - counts.accepted in (0, 1)  # 1: it was the last token
        elif name == "lookup" and setting == "copies":
            assert counts.accepted == counts.drafted > 20 or not steady(context)


def steady(context: LlamaContext) -> bool:
    """Check if a row of two together has the bits that it has alone."""
    context.forget()
    return len(context.look_ahead([5, 6])) == 2


def test_an_index_chooses_among_drafts(make_gguf: Make, tmp_path: Path) -> None:
    with LlamaContext(make_gguf(**STEADY), positions=256) as context:
        decoder = LocalDecoder(open_index(write_gguf_index(context.gguf, tmp_path / "small" / "1")))
        options: dict[str, Any] = {"max_tokens": 30, "temperature": 1.0, "seeds": 4}
        with attach(context, decoder, head="sketch") as attached:
            plain = made(attached.generate(PROMPT, logprobs=True, **options))
            drafter = Oracle([*PROMPT, *plain[1][0]], spoil=0.2)
            ahead = attached.generate(PROMPT, logprobs=True, drafter=drafter, **options)
            assert made(ahead) == plain
            assert ahead.counts.accepted > 10
        with attach(context, None) as attached:  # drafts read for one head, and then another
            dense = attached.generate(PROMPT, drafter=drafter, **options)
            for count, _ in enumerate(dense):
                if count == 9:
                    attached.swap(decoder, head="sketch")
            assert len(dense.ids[0]) == 30


def test_a_lookup_finds_what_followed_the_last_tokens() -> None:
    lookup = PromptLookup()
    text = [1, 2, 3, 4, 5, 6, 9, 2, 3, 4]
    assert lookup(text, SHORTEST, 2) == [5, 6]
    assert lookup(text, SHORTEST + 1, 2) == []
    text += [7, 2, 3, 4]
    assert lookup(text, SHORTEST, 9) == [7, 2, 3, 4]  # the last place counts
    assert lookup([1, 2], SHORTEST, 9) == lookup([], SHORTEST, 9) == []
    text = list(range(50)) * 2
    assert PromptLookup()(text, LONGEST, 3) == [0, 1, 2]


def test_more_is_drafted_after_right_drafts(make_gguf: Make) -> None:
    asked = []

    def drafter(text: Sequence[int], trusted: int, most: int) -> Sequence[int]:
        asked.append((trusted, most))
        return [300 if len(text) < 100 else 301] * most

    with LlamaContext(make_gguf(**STEADY), positions=256) as context:
        generation = generate(
            context, [300] * 9, drafter=drafter, max_tokens=120, allowed=[300], ignore_end=True
        )
        list(generation)
        if steady(context):
            most = [most for _, most in asked]
            assert most[:4] == [1, 2, 2, 2]
            assert most[-2] == 1
            assert [trusted for trusted, _ in asked[-2:]] == [LONGEST, LONGEST]


def test_drafts_are_of_one_prompt(make_gguf: Make) -> None:
    refused = pytest.raises(InvalidRequest, match="drafter: got one for 2 prompts")
    with LlamaContext(make_gguf(), sequences=2) as context, refused:
        generate(context, ["the", "of"], drafter=PromptLookup())


def test_what_a_grammar_forces_is_read_ahead(make_gguf: Make) -> None:
    ids = [*range(300, 320), END]
    options: dict[str, Any] = {
        "grammar": lambda: Masks([[one] for one in ids], 560, forced=True), "max_tokens": 30,
    }  # fmt: skip
    with LlamaContext(make_gguf(**STEADY), positions=256) as context:
        plain = generate(context, PROMPT, **options)
        expected = made(plain)
        ahead = generate(context, PROMPT, drafter=lambda *_: [], **options)
        assert made(ahead) == expected
        assert plain.ids[0] == ids
        assert ahead.counts.accepted > 8 or not steady(context)
