"""A language model of 40 words with random weights."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from demo.excerpt import write_paragraphs
from demo.lstm import Lstm
from demo.run import Options
from logitsieve.training.trainer import LanguageModel
from logitsieve.training.vocabulary import END, UNKNOWN, Vocabulary

WORDS = (UNKNOWN, END, *(f"w{number}" for number in range(38)))


def tiny_model(seed: int = 0) -> LanguageModel:
    """Weights large enough for the history to matter."""
    torch.manual_seed(seed)
    model = LanguageModel(len(WORDS), dim=12, layers=2).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


def in_numpy(model: LanguageModel) -> Lstm:
    return Lstm.of({name: each.detach().numpy() for name, each in model.named_parameters()})


def tiny_options(folder: Path, words: int = 4) -> Options:
    random = np.random.default_rng(3)
    model, text, prompts = folder / "model", folder / "text.txt.gz", folder / "prompts.txt"
    model.mkdir()
    tiny_model().save(model)
    Vocabulary(WORDS).save(model)
    lines = [" ".join(random.choice(WORDS[2:], 9)) for _ in range(400)]
    write_paragraphs(text, lines)
    prompts.write_text("w1 w2 w3\nw4\n", encoding="utf-8")
    sizes: Any = {"contexts": 1500, "judged": 400, "clusters": 4, "words": words, "beams": 2}
    return Options(models=folder / "models", model=model, text=text, prompts=prompts, **sizes)
