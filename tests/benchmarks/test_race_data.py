from pathlib import Path

import pytest
import torch

from benchmarks.race import datasets, language_models
from benchmarks.race.language_models import LSTM, Design, Transformer, perplexity, read, train
from benchmarks.race.prepare import prepared


def test_a_dataset_that_is_there_is_not_made_again(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["lm-docs", "nmt-captions", "lstm-1500"])
def test_without_the_shared_folder_it_is_said_what_is_absent(name: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="absent"):
        datasets.load(name, tmp_path / "shared", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_an_unknown_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allowed: demo, lm-docs"):
        datasets.load("ptb", tmp_path, tmp_path)
