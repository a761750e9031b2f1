from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.translate.contenders import Clocked, NumpySoftmax, TorchSoftmax
from benchmarks.translate.incremental import Translating
from benchmarks.translate.run import by_beams, differing, greedily, share_equal
from logitsieve.heads import Softmax
from tests.client.dense import DenseDecoder
from tests.synthetic import make_softmax

WORDS, DIM, START, END = 60, 16, 1, 2


class Tiny(nn.Module):
    """What `incremental` uses of nmt_model.Translator, with random weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.target = nn.Embedding(WORDS, DIM)
        self.position = nn.Parameter(torch.randn(100, DIM))
        sizes: dict[str, Any] = {"nhead": 2, "num_encoder_layers": 1, "num_decoder_layers": 2}
        self.transformer = nn.Transformer(
            DIM, **sizes, dim_feedforward=24, dropout=0.0, batch_first=True, norm_first=True
        )
        self.eval()

    def batch(self, sentences: list[list[str]]) -> Tensor:
        width = max(map(len, sentences))
        return torch.tensor([[int(w) for w in s] + [0] * (width - len(s)) for s in sentences])

    def encode(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.target(ids) + self.position[: ids.shape[1]], ids == 0

    @torch.inference_mode()
    def hidden(self, prefixes: np.ndarray, memory: Tensor, padded: Tensor) -> np.ndarray:
        length = prefixes.shape[1]
        causal = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        inputs = self.target(torch.from_numpy(prefixes).long()) * 4 + self.position[:length]
        read = self.transformer.decoder(
            inputs, memory, tgt_mask=causal, memory_key_padding_mask=padded
        )
        found: np.ndarray = read[:, -1].numpy()
        return found


@pytest.fixture(scope="module")
def model() -> Any:
    with pytest.warns(UserWarning, match="enable_nested_tensor"):
        return Tiny()


@pytest.fixture(scope="module")
def softmax() -> Softmax:
    return make_softmax(WORDS, DIM)


SENTENCES = [["5", "9", "7"], ["8"], ["30", "31"]]


def test_a_word_at_a_time_is_all_at_once(model: Any) -> None:
    random = np.random.default_rng(0)
    state = Translating(model, SENTENCES, START)
    hidden, rows, prefixes = state.start, np.arange(3), np.full((3, 1), START)
    for _ in range(5):
        memory, padded = model.encode(model.batch(SENTENCES))
        expected = model.hidden(prefixes, memory[rows], padded[rows])
        np.testing.assert_allclose(hidden, expected, atol=1e-5)
        parents = random.integers(0, len(rows), 4).astype(np.int32)
        words = random.integers(0, WORDS, 4).astype(np.int32)
        hidden, rows = state.step(parents, words), rows[parents]
        prefixes = np.concatenate([prefixes[parents], words[:, None]], axis=1)


@pytest.mark.parametrize("kind", [NumpySoftmax, TorchSoftmax])
def test_baselines_are_the_full_softmax(kind: Any, softmax: Softmax) -> None:
    random = np.random.default_rng(1)
    hidden = random.standard_normal((6, DIM)).astype(np.float32)
    scores = random.standard_normal(6).astype(np.float32)
    dense, full = DenseDecoder(softmax.weight, softmax.bias), kind(softmax)
    options: dict[str, Any] = {"beams_in": 3, "beams_out": 4, "eos_ids": [END]}
    expected = dense.beam_step(hidden, scores, **options)
    got = full.beam_step(hidden, scores, **options)
    np.testing.assert_array_equal(got.tokens, expected.tokens)
    np.testing.assert_array_equal(got.parents, expected.parents)
    np.testing.assert_array_equal(got.finished, expected.finished)
    np.testing.assert_allclose(got.scores, expected.scores, atol=1e-4)
    np.testing.assert_array_equal(full.topk(hidden, 1).ids, dense.topk(hidden, 1).ids)


def test_one_beam_translates_as_greedy_search_does(model: Any, softmax: Softmax) -> None:
    clocked = Clocked("torch", TorchSoftmax(softmax), {})
    greedy = greedily(clocked, Translating(model, SENTENCES, START), END, 0)
    beams = by_beams(clocked, Translating(model, SENTENCES, START), END, 1)
    assert greedy == beams
    figures = clocked.figures()
    assert figures["steps"] > 0
    assert figures["proven_rows"] == 1


def test_comparing_translations() -> None:
    found: dict[str, list[tuple[int, ...]]] = {"a": [(1,), (2,), (3,)], "b": [(1,), (4,), (3,)]}
    assert share_equal(found["a"], found["b"]) == pytest.approx(2 / 3)
    assert share_equal(found["a"][:1], found["b"]) == 1
    assert differing(found) == [1, 0, 2]
