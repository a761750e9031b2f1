from collections import Counter
from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.constraints import Constraints
from logitsieve.client.beam_search import Hypothesis
from logitsieve.decoding import LocalDecoder
from logitsieve.heads import Softmax
from logitsieve.index import open_index
from tests.client.test_beam_search import DIM, EOS, Recurrent
from tests.oracle import chi_square_p
from tests.refusals import refused
from tests.synthetic import write_heads

WORDS, LENGTH = 4, 3
Law = dict[tuple[int, ...], float]


def model_at(path: Path, words: int = WORDS) -> Recurrent:
    """A model whose decoder has all heads' draws."""
    model = Recurrent(words)
    weight = np.asarray(model.decoder.weight / 2, np.float32)
    index = write_heads(path / "m" / "1", Softmax(weight, np.zeros(words, np.float32)))
    model.decoder = LocalDecoder(open_index(index))
    model.decoder.weight = weight
    return model


@pytest.fixture
def model(tmp_path: Path) -> Recurrent:
    return model_at(tmp_path)


def law_of(model: Recurrent, start: np.ndarray, words: list[int]) -> Law:
    """The probability of every text of at most LENGTH `words`."""
    others = [word for word in words if word != EOS]
    texts = [(*each, EOS) for size in range(LENGTH) for each in product(others, repeat=size)]
    texts += product(others, repeat=LENGTH)
    law = {text: np.exp(log_prob(model, start, text, words)) for text in texts}
    assert sum(law.values()) == pytest.approx(1.0)
    return law


def log_prob(model: Recurrent, start: np.ndarray, text: tuple[int, ...], words: list[int]) -> float:
    total, state = 0.0, start[None]
    for token in text:
        logits = (state @ model.decoder.weight.T)[0]
        total += logits[token] - np.logaddexp.reduce(logits[words])
        state = model.after(state, np.array([token]))
    return float(total)


def searched(
    model: Recurrent, start: np.ndarray, count: int, **options: Any
) -> Iterator[list[Hypothesis]]:
    """Searches from one state, by other seeds."""
    given: dict[str, Any] = {"num_beams": 3, "n_best": 3, "max_tokens": LENGTH, "seeds": 5}
    found = model.search(np.tile(start, (count, 1)), sample=True, **given | options)
    assert found.proven.all()
    yield from found.hypotheses


def judged(texts: Iterator[tuple[Any, ...]], law: dict[tuple[Any, ...], float]) -> float:
    """The p-value of chi-square; outcomes that are seldom expected count together."""
    counts = Counter(texts)
    total = counts.total()
    assert counts.keys() <= law.keys()
    often = [one for one in law if law[one] * total >= 5]
    seen = [counts[one] for one in often]
    expected = [law[one] for one in often]
    seen.append(total - sum(seen))
    expected.append(1 - sum(expected))
    return chi_square_p(np.array(seen), np.array(expected))


def ordered(law: Law, count: int) -> dict[tuple[Any, ...], float]:
    """The law of `count` texts in the order in which they are drawn without replacement."""
    made = {}
    for texts in permutations(law, count):
        chance, left = 1.0, 1.0
        for text in texts:
            chance *= law[text] / left
            left -= law[text]
        made[texts] = chance
    return made


@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=pytest.mark.exhaustive)])
def test_texts_follow_the_law_of_draws_without_replacement(model: Recurrent, count: int) -> None:
    """In their order; by their weights p / q, Horvitz and Thompson's, they sum to one."""
    [start] = model.start(1)
    law = law_of(model, start, list(range(WORDS)))
    found = list(searched(model, start, count))
    pairs = (tuple(one.tokens for one in each[:2]) for each in found)
    assert judged(pairs, ordered(law, 2)) > 1e-3
    for each in found[:50]:
        assert [one.score for one in each] == sorted((one.score for one in each), reverse=True)
        for one in each:
            assert one.log_prob == pytest.approx(np.log(law[one.tokens]), abs=1e-5)
    sums = []
    for *drawn, least in found:
        logs = np.array([one.log_prob for one in drawn])
        sums.append((np.exp(logs) / -np.expm1(-np.exp(logs - least.score))).sum())
    error = np.std(sums) / len(sums) ** 0.5
    assert abs(np.mean(sums) - 1) < 4 * error < 0.1


def test_banned_words_leave_the_law_of_the_others(model: Recurrent) -> None:
    [start] = model.start(1)
    words = [0, 2, 3]
    options: dict[str, Any] = {"constraints": Constraints(banned=[1]), "num_beams": 1, "n_best": 1}
    found = searched(model, start, 2000, **options)
    law = {(text,): chance for text, chance in law_of(model, start, words).items()}
    assert judged(((one.tokens,) for [one] in found), law) > 1e-3


def test_few_words_make_few_texts_and_ended_ones_stay(tmp_path: Path) -> None:
    """With two words the texts of at most three tokens are four: all are found, once each."""
    model = model_at(tmp_path, words=3)
    [start] = model.start(1)
    options: dict[str, Any] = {"constraints": Constraints(banned=[1])}
    for each in searched(model, start, 40, **options):
        assert len({one.tokens for one in each}) == len(each) == 3
        assert all(one.tokens[-1] == EOS or len(one.tokens) == LENGTH for one in each)
        assert all(EOS not in one.tokens[:-1] for one in each)
    [each] = searched(model, start, 1, max_tokens=1, **options)
    assert sorted(one.tokens for one in each) == [(0,), (EOS,)]


def test_a_batch_is_its_sentences_alone_and_the_first_draw_needs_no_others(tmp_path: Path) -> None:
    model = model_at(tmp_path, words=40)
    states, seeds = model.start(4), np.array([7, 1, 7, 3], np.uint64)
    given: dict[str, Any] = {"sample": True, "num_beams": 4, "n_best": 4, "max_tokens": 6}
    together = model.search(states, seeds=seeds, **given).hypotheses
    for row in range(4):
        alone = model.search(states[row : row + 1], seeds=seeds[row : row + 1], **given)
        assert alone.hypotheses == [together[row]]
    narrow = model.search(states, seeds=seeds, **given | {"num_beams": 1, "n_best": 1})
    assert [one.tokens for [one] in narrow.hypotheses] == [each[0].tokens for each in together]
    assert model.search(states, seeds=seeds + np.uint64(1), **given).hypotheses != together


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("length_penalty", {"length_penalty": 0.5}),
        ("penalty", {"penalty": "gnmt"}),
        ("early_stopping", {"early_stopping": True}),
        ("eos_ids", {"eos_ids": [-1]}),
        ("seeds", {"seeds": [1, 2]}),
        ("samples", {"num_beams": WORDS + 1}),
        ("sample", {"sample": 1}),
        ("seeds", {"sample": False, "seeds": 1}),
    ],
)
def test_what_draws_do_not_have_is_refused(
    model: Recurrent, field: str, options: dict[str, Any]
) -> None:
    assert model.start(1).shape == (1, DIM)
    with refused(field):
        model.search(model.start(1), **{"sample": True, **options})
