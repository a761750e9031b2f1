from pathlib import Path

import pytest
import torch

from benchmarks.race import datasets, language_models, wide_layer
from benchmarks.race.language_models import LSTM, Design, Transformer, read, train
from benchmarks.race.prepare import prepared
from benchmarks.race.wide_layer import Reading, alternate, initial_layer, perplexity
from logitsieve.training.trainer import Vocabulary


def make_reading(rows: int, words: int, dim: int) -> Reading:
    random = torch.Generator().manual_seed(0)
    return Reading(
        torch.randn(rows, dim, generator=random).half(),
        torch.randint(0, words, (rows,), generator=random),
        torch.rand(rows, generator=random) + 0.5,
    )


def test_only_new_words_are_trained() -> None:
    torch.manual_seed(0)
    layer, train = torch.nn.Linear(16, 50), make_reading(3 * wide_layer.BATCH, 50, 16)
    before = layer.weight.detach().clone()
    new_V = torch.arange(50) >= 40
    losses = perplexity(layer, *train[:2])
    wide_layer.train_layer(layer, train, new_V, no_progress)
    torch.testing.assert_close(layer.weight[:40], before[:40])
    assert (layer.weight[40:] != before[40:]).any(dim=1).all()
    assert perplexity(layer, *train[:2]) < losses


def test_new_words_share_what_the_model_gave_the_unknown_one() -> None:
    known, wide = Vocabulary(["<unk>", "a", "<eos>"]), Vocabulary(["<unk>", "a", "<eos>", "b", "c"])
    weights = {"o.weight": torch.randn(3, 4), "o.bias": torch.randn(3)}
    layer = initial_layer(weights, known, wide, torch.tensor([1, 9, 9, 3, 4]))
    hidden_states = torch.randn(6, 4)
    narrow = torch.softmax(hidden_states @ weights["o.weight"].T + weights["o.bias"], 1)
    found = torch.softmax(layer(hidden_states), 1)
    torch.testing.assert_close(found[:, 1:3], narrow[:, 1:])
    shares = torch.tensor([1, 3, 4]) / 8
    torch.testing.assert_close(found[:, [0, 3, 4]], narrow[:, :1] * shares)


def test_runs_go_to_both_parts_in_turn_and_are_kept(tmp_path: Path) -> None:
    reading = make_reading(4 * wide_layer.RUN, 9, 2)
    first, second = alternate(reading)
    run = wide_layer.RUN
    torch.testing.assert_close(first.hidden_states[run:], reading.hidden_states[2 * run : 3 * run])
    torch.testing.assert_close(second.following[:run], reading.following[run : 2 * run])
    (tmp_path / "nmt.npz").write_bytes(b"kept")
    assert prepared("nmt", tmp_path / "shared", tmp_path).read_bytes() == b"kept"


@pytest.mark.parametrize("kind", [Transformer, LSTM])
def test_a_language_model_learns_which_word_follows(
    kind: type[Transformer | LSTM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_models, "STEP_WORDS", language_models.RUN)
    torch.manual_seed(0)
    words, run = 20, language_models.RUN
    ids_N = torch.arange(60 * run + 1) % words
    model = kind(Design(words, 16, len(ids_N) - 1, 0.05))
    layer = train(model, ids_N, Design(words, 16, 60 * run, 0.05), no_progress)
    hidden_states, following = read(model, ids_N, 4 * run, "all", no_progress)
    assert hidden_states.shape == (4 * run, 16)
    assert hidden_states.dtype == torch.float16
    assert perplexity(layer, hidden_states, following) < words / 2


def no_progress(stage: str, done: int, total: int) -> None:
    assert 0 < done <= total


@pytest.mark.parametrize("name", ["lm-docs", "nmt-captions", "lm-docs-70k", "lstm-1500"])
def test_without_the_shared_folder_it_is_said_what_is_absent(name: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="absent"):
        datasets.load(name, tmp_path / "shared", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_an_unknown_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allowed: demo, lm-docs"):
        datasets.load("ptb", tmp_path, tmp_path)
