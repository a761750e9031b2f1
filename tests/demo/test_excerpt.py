import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from demo.excerpt import EXCERPT, excerpt, read_paragraphs, split, write_paragraphs, write_training
from logitsieve.training.trainer import LanguageModel, Vocabulary

DEMO = EXCERPT.parent.parent
MODEL = DEMO / "model"


def test_an_excerpt_is_the_same_each_time_and_disjoint_from_held_out_text(tmp_path: Path) -> None:
    paragraphs = [f"paragraph {number}" for number in range(5000)]
    first, second = tmp_path / "first.gz", tmp_path / "second.gz"
    write_paragraphs(first, excerpt(paragraphs))
    write_paragraphs(second, excerpt(paragraphs))
    assert first.read_bytes() == second.read_bytes()
    assert read_paragraphs(first) == excerpt(paragraphs)
    assert len(excerpt(paragraphs)) == pytest.approx(len(paragraphs) / 7, rel=0.05)
    seen, held_out = split(read_paragraphs(EXCERPT))
    assert len(held_out) == pytest.approx(len(seen) / 9, rel=0.01)
    assert set(seen).isdisjoint(held_out)
    paragraphs = ["secret", "open", "secret", "also open"]
    write_training(tmp_path / "text", paragraphs, ["secret"])
    assert read_paragraphs(tmp_path / "text" / "train.txt.gz") == ["open", "also open"]
    assert read_paragraphs(tmp_path / "text" / "valid.txt.gz") == ["secret"]


def test_bundled_files_are_small_and_prompts_of_known_words() -> None:
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= 24_000_000
    assert EXCERPT.stat().st_size <= 600_000
    vocabulary = Vocabulary.load(MODEL)
    prompts = (DEMO / "prompts.txt").read_text(encoding="utf-8").splitlines()
    assert len(prompts) == 5
    assert not any(0 in vocabulary.encode(prompt) for prompt in prompts)


@torch.inference_mode()
def test_bundled_model_reads_the_held_out_text() -> None:
    model, vocabulary = LanguageModel.load(MODEL), Vocabulary.load(MODEL)
    assert model.output.weight.shape == (40_000, 256)
    assert len(vocabulary) == 40_000
    _, held_out = split(read_paragraphs(EXCERPT))
    ids = torch.tensor([vocabulary.encode("\n".join(held_out[:20]))])
    logits, _ = model(ids[:, :-1])
    loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    assert loss < math.log(200)
