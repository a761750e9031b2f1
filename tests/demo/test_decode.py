from __future__ import annotations

from functools import partial
from itertools import product
from typing import cast

import pytest
import torch

from demo.decode import HEADS, NextWords, Writer, beam_search, greedy
from logitsieve.api.decoder import Decoder
from logitsieve.training.trainer import LanguageModel, Vocabulary
from tests.demo.tiny import WORDS, ExactDecoder, tiny_model

END = 1
PROMPT = [5, 3, 4]


def next_words(model: LanguageModel) -> NextWords:
    return partial(ExactDecoder(model).topk, normalizer="candidates")


@torch.inference_mode()
def log_probs(model: LanguageModel, ids: list[int]) -> list[float]:
    """Of every word after `ids`, all of which are read again."""
    logits, _ = model(torch.tensor([ids]))
    found: list[float] = logits[0, -1].log_softmax(dim=0).tolist()
    return found


def score(model: LanguageModel, ids: tuple[int, ...]) -> float:
    return sum(log_probs(model, [*PROMPT, *ids[:place]])[word] for place, word in enumerate(ids))


def brute_force_beam(
    model: LanguageModel, words: int, beams: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Every word of the vocabulary after every live hypothesis, from the definition."""
    kept: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for _ in range(words):
        longer = []
        for total, ids in kept:
            if END in ids:
                longer.append((total, ids))
                continue
            for word, log_prob in enumerate(log_probs(model, [*PROMPT, *ids])):
                longer.append((total + log_prob, (*ids, word)))
        kept = sorted(longer, reverse=True)[:beams]
    return kept


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("beams", [1, 3, 6])
def test_the_beam_is_the_brute_force_one(seed: int, beams: int) -> None:
    model = tiny_model(seed=seed)
    found = beam_search(model, next_words(model), PROMPT, END, 6, beams)
    expected = brute_force_beam(model, 6, beams)
    assert [each.ids for each in found] == [ids for _, ids in expected]
    assert [each.log_prob for each in found] == pytest.approx([total for total, _ in expected])


def test_a_wide_beam_finds_the_likeliest_completion() -> None:
    model = tiny_model(vocabulary_size=8, seed=5)
    best, *_ = beam_search(model, next_words(model), PROMPT, END, 3, beams=8)
    everything = {ids[: ids.index(END) + 1] if END in ids else ids for ids in all_ids(8, 3)}
    assert best.log_prob == pytest.approx(max(score(model, ids) for ids in everything))


def all_ids(vocabulary_size: int, words: int) -> product[tuple[int, ...]]:
    return product(range(vocabulary_size), repeat=words)


@pytest.mark.parametrize("seed", range(4))
def test_greedy_takes_the_argmax(seed: int) -> None:
    model = tiny_model(seed=seed)
    ids = greedy(model, next_words(model), PROMPT, END, 10)
    for place, word in enumerate(ids):
        found = log_probs(model, [*PROMPT, *ids[:place]])
        assert word == found.index(max(found))
    assert len(ids) == 10 or ids[-1] == END
    assert END not in ids[:-1]


@pytest.mark.parametrize("seed", range(4))
def test_one_beam_is_greedy(seed: int) -> None:
    model = tiny_model(seed=seed)
    [only] = beam_search(model, next_words(model), PROMPT, END, 10, beams=1)
    assert only.ids == greedy(model, next_words(model), PROMPT, END, 10)


def always_end() -> LanguageModel:
    model = tiny_model()
    torch.nn.init.constant_(model.output.bias[END : END + 1], 1000.0)
    return model


def test_decoding_stops_at_the_end() -> None:
    model = always_end()
    assert greedy(model, next_words(model), PROMPT, END, 10) == (END,)
    best, *_ = beam_search(model, next_words(model), PROMPT, END, 10, beams=3)
    assert best.ids == (END,)


def test_the_writer_asks_for_both_heads_of_the_model() -> None:
    model = tiny_model()
    decoder = ExactDecoder(model)
    writer = Writer(
        model=model,
        vocabulary=Vocabulary(WORDS),
        decoder=cast(Decoder, decoder),
        label="demo@7",
        words=3,
    )
    found = list(writer.compare(["w1 w2", "w3"], beams=2))
    assert [each.prompt for each in found] == ["w1 w2", "w1 w2", "w3", "w3"]
    assert [each.search for each in found] == ["greedy", "beam 2"] * 2
    assert all(each.exact == each.screen for each in found)
    assert set(decoder.asked) == {("demo@7", head, k) for head in HEADS for k in (1, 2)}
