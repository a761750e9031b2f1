import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch

from logitsieve.api.constraints import Constraints
from logitsieve.client.beam_search import SearchResult, beam_search
from logitsieve.decoding import LocalDecoder
from logitsieve.heads import Softmax
from logitsieve.index import open_index
from tests.client import tiny_models
from tests.client.dense import DenseDecoder, decoder_of, log_softmax
from tests.refusals import refused
from tests.server.running import Loop, config_for, running
from tests.synthetic import write_heads

PAGE = Path(__file__).parents[2] / "docs" / "beam-search.md"
WORDS, DIM, EOS = 7, 6, 2


class Recurrent:
    """h' = tanh(A h + E[token]): a model whose state is its context, as `step` sees it."""

    def __init__(self, words: int = WORDS, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.inner = random.standard_normal((DIM, DIM))
        self.words = random.standard_normal((words, DIM))
        weight = 2 * random.standard_normal((words, DIM), np.float32)
        self.decoder: Any = DenseDecoder(weight)
        self.rows: list[int] = []  # of each step
        self._hidden = np.empty((0, DIM))

    def start(self, sentences: int = 3, seed: int = 1) -> np.ndarray:
        self._hidden = np.random.default_rng(seed).standard_normal((sentences, DIM))
        return self._hidden

    def after(self, hidden_states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.tanh(hidden_states @ self.inner + self.words[tokens])
        return found

    def step(self, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        assert parents.dtype == tokens.dtype == np.int32
        self.rows.append(len(parents))
        self.reorder(parents)
        return self.read(tokens)

    # What the page calls the state of a model.
    def encode(self, sources: np.ndarray) -> Self:
        self._hidden = sources
        return self

    def read_start(self) -> np.ndarray:
        return self._hidden

    def reorder(self, parents: np.ndarray) -> None:
        self._hidden = self._hidden[parents]

    def read(self, tokens: np.ndarray) -> np.ndarray:
        self._hidden = self.after(self._hidden, tokens)
        return self._hidden

    def search(self, hidden_states: np.ndarray | None = None, **options: Any) -> SearchResult:
        hidden_states = self.start() if hidden_states is None else hidden_states
        self._hidden = hidden_states
        chosen: dict[str, Any] = {"num_beams": 3, "eos_ids": [EOS], "max_tokens": 8} | options
        return beam_search(self.decoder, hidden_states, self.step, **chosen)

    def log_prob(self, hidden_states: np.ndarray, tokens: tuple[int, ...]) -> float:
        total = 0.0
        for token in tokens:
            logits = hidden_states[None] @ self.decoder.weight.T
            total += float(log_softmax(logits)[0, token])
            hidden_states = self.after(hidden_states[None], np.array([token]))[0]
        return total


def test_scores_are_those_of_the_tokens() -> None:
    model = Recurrent()
    hidden_states = model.start()
    found = model.search(hidden_states, n_best=3, length_penalty=0.7)
    assert [len(each) for each in found.hypotheses] == [3, 3, 3]
    for row, hypotheses in zip(hidden_states, found.hypotheses, strict=True):
        assert hypotheses == sorted(hypotheses, reverse=True)
        for one in hypotheses:
            assert one.log_prob == pytest.approx(model.log_prob(row, one.tokens), abs=1e-5)
            assert one.score == pytest.approx(one.log_prob / len(one.tokens) ** 0.7)
            assert one.tokens[-1] == EOS or len(one.tokens) == 8
            assert EOS not in one.tokens[:-1]
    assert found.proven.all()


@pytest.mark.parametrize("penalty", ["length", "gnmt"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_beams_that_keep_all_find_the_best_of_all(penalty: Any, length_penalty: float) -> None:
    model, steps = Recurrent(words=4), 4
    hidden_states = model.start(2)
    options: Any = {
        "num_beams": 4**steps,
        "max_tokens": steps,
        "early_stopping": "never",
        "n_best": 5,
    }
    found = model.search(hidden_states, length_penalty=length_penalty, penalty=penalty, **options)
    divisor: Callable[[int], float] = {"length": float, "gnmt": lambda n: (5 + n) / 6}[penalty]
    others = [word for word in range(4) if word != EOS]
    endings = [
        (*words, EOS) for length in range(steps) for words in product(others, repeat=length)
    ] + list(product(others, repeat=steps))
    for row, hypotheses in zip(hidden_states, found.hypotheses, strict=True):
        ranks = {
            tokens: model.log_prob(row, tokens) / divisor(len(tokens)) ** length_penalty
            for tokens in endings
        }
        best = sorted(ranks, key=lambda tokens: -ranks[tokens])[:5]
        assert [one.tokens for one in hypotheses] == best


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_a_batch_is_its_sentences_alone(early_stopping: Any) -> None:
    model = Recurrent()
    hidden_states = model.start(6)
    options: dict[str, Any] = {"early_stopping": early_stopping, "n_best": 2, "max_tokens": 12}
    together = model.search(hidden_states, **options)
    rows = list(model.rows)
    for row in range(6):
        alone = model.search(hidden_states[row : row + 1], **options)
        assert alone.hypotheses[0] == together.hypotheses[row]
    assert rows[0] == 18
    assert sorted(rows, reverse=True) == rows
    assert together.steps == len(rows) + 1
    assert early_stopping is not True or rows[-1] < 18  # sentences that are done leave


def test_a_live_hypothesis_that_could_only_tie_ends_the_search() -> None:
    """Of equal logits each hypothesis ranks alike, and the EOS, the lowest id, finishes first."""
    decoder, hidden_states = DenseDecoder(np.zeros((4, DIM))), np.ones((2, DIM))

    def step(parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return np.asarray(hidden_states[parents])

    found = beam_search(decoder, hidden_states, step, num_beams=1, eos_ids=[0], max_tokens=5)
    assert found.steps == 1
    assert [one.tokens for [one] in found.hypotheses] == [(0,), (0,)]


def test_banned_ids_fewer_words_than_beams_and_a_target() -> None:
    model = Recurrent()
    free, held = model.search(), model.search(constraints=Constraints(banned=[EOS, 0]))
    assert {0, EOS} & {token for [one] in free.hypotheses for token in one.tokens}
    for [one] in held.hypotheses:
        assert len(one.tokens) == 8
        assert not {0, EOS} & set(one.tokens)
    model = Recurrent(words=3)
    found = model.search(num_beams=5, n_best=5, max_tokens=3)
    for hypotheses in found.hypotheses:
        assert len({one.tokens for one in hypotheses}) == len(hypotheses) == 5
        assert min(one.log_prob for one in hypotheses) > -100
    model = Recurrent()
    model.search(head="screen", normalizer="lowrank", max_tokens=1)
    assert model.decoder.asked == [("beam_step", {"head": "screen", "normalizer": "lowrank"})]


def test_an_index_finds_the_same_in_process_and_over_the_wire(tmp_path: Path, loop: Loop) -> None:
    model = Recurrent(words=400)
    softmax = Softmax(model.decoder.weight.astype(np.float32), np.zeros(400, np.float32))
    index = write_heads(tmp_path / "lm" / "1", softmax, "sketch")
    expected, found = model.search(n_best=3), []
    with running(loop, config_for(tmp_path)) as run:
        for model.decoder in (LocalDecoder(open_index(index)), run.client):
            found.append(model.search(n_best=3, head="sketch"))
    assert found[0].proven.all()
    assert found[0].hypotheses == found[1].hypotheses
    for ours, theirs in zip(found[0].hypotheses, expected.hypotheses, strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"num_beams": 0}, "num_beams"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n_best": 4}, "n_best"),
        ({"penalty": "mean"}, "penalty"),
        ({"early_stopping": "always"}, "early_stopping"),
    ],
)
def test_what_is_refused(options: dict[str, Any], field: str) -> None:
    with refused(field):
        Recurrent().search(**options)


class Translating:
    """`step` of a Hugging Face model, which reads every prefix again."""

    def __init__(self, model: Any, source: dict[str, torch.Tensor]) -> None:
        self._model = model
        self._source = source["input_ids"]
        rows = len(self._source)
        self._sentence = np.arange(rows)
        self._prefix = np.full((rows, 1), tiny_models.PAD)

    @torch.inference_mode()
    def hidden_states(self) -> np.ndarray:
        read = self._model.model(
            input_ids=self._source[self._sentence], decoder_input_ids=torch.from_numpy(self._prefix)
        )
        found: np.ndarray = read.last_hidden_state[:, -1].numpy()
        return found

    def step(self, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        self._sentence = self._sentence[parents]
        self._prefix = np.concatenate([self._prefix[parents], tokens[:, None]], axis=1)
        return self.hidden_states()


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize(
    ("beams", "length_penalty", "steps"), [(4, 1.0, 10), (2, 0.0, 7), (5, 2.0, 12), (3, -0.5, 8)]
)
def test_the_search_of_transformers(
    early_stopping: Any, beams: int, length_penalty: float, steps: int
) -> None:
    model, source = tiny_models.bart(), tiny_models.prompts(5)
    shared: Any = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    asked = {"num_beams": beams, "num_return_sequences": 2, "max_new_tokens": steps}
    kept = {"return_dict_in_generate": True, "output_scores": True}
    expected = model.generate(**source, **asked, **kept, **shared)
    translating = Translating(model, source)
    first, step = translating.hidden_states(), translating.step
    shared |= {"num_beams": beams, "eos_ids": [tiny_models.EOS], "max_tokens": steps, "n_best": 2}
    found = beam_search(decoder_of(model), first, step, **shared)
    flat = [one for hypotheses in found.hypotheses for one in hypotheses]
    for one, ids, score in zip(flat, expected.sequences, expected.sequences_scores, strict=True):
        tokens = ids[1:].tolist()
        assert list(one.tokens) == tokens[: len(one.tokens)]
        assert set(tokens[len(one.tokens) :]) <= {tiny_models.PAD, tiny_models.EOS}
        assert one.score == pytest.approx(float(score), abs=1e-4)
    if length_penalty <= 1:
        assert any(one.tokens[-1] == tiny_models.EOS and len(one.tokens) > 1 for one in flat)


def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    recurrent = Recurrent()
    weight = recurrent.decoder.weight.astype(np.float32)
    softmax = Softmax(weight, np.zeros(WORDS, np.float32))
    recurrent.decoder = LocalDecoder(
        open_index(write_heads(tmp_path / "m" / "1", softmax, "sketch"))
    )
    names: dict[str, Any] = {
        "model": recurrent,
        "decoder": recurrent.decoder,
        "sources": recurrent.start(),
        "END": EOS,
        "UNKNOWN": 0,
    }
    text = PAGE.read_text(encoding="utf-8")
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)):
        exec(compile(code, f"{PAGE.name}, example {number + 1}", "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) == 3
    options: dict[str, Any] = {"num_beams": 5, "max_tokens": 40, "n_best": 2}
    assert names["found"].hypotheses == recurrent.search(**options).hypotheses
    assert [len({*drawn}) for drawn in names["drawn"].hypotheses] == [5] * 3
