"""A language model of 40 words that nobody trained, and an in-process Decoder over its softmax."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from demo.excerpt import write_paragraphs
from demo.run import Options
from logitsieve.api.decoder import NormalizerName
from logitsieve.api.results import Answer, ArrayLike, TopKReply
from logitsieve.training.trainer import LanguageModel, Vocabulary
from logitsieve.training.trainer.vocabulary import END, UNKNOWN

WORDS = (UNKNOWN, END, *(f"w{number}" for number in range(38)))


def tiny_model(vocabulary_size: int = len(WORDS), seed: int = 0) -> LanguageModel:
    """Weights large enough for the history to matter."""
    torch.manual_seed(seed)
    model = LanguageModel(vocabulary_size, dim=12, layers=2).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


class ExactDecoder:
    """A Decoder that computes every logit; what it was called with is in `asked`."""

    def __init__(self, model: LanguageModel) -> None:
        self.output = model.output
        self.asked: list[tuple[str, str, int]] = []

    def topk(
        self,
        hidden: ArrayLike,
        k: int,
        *,
        model: str = "",
        head: str = "",
        knobs: Mapping[str, float] | None = None,
        min_precision: float | None = None,
        exact: bool = False,
        normalizer: NormalizerName | None = None,
    ) -> TopKReply:
        self.asked.append((model, head, k))
        with torch.inference_mode():
            logits_BV = self.output(torch.as_tensor(hidden))
            best = logits_BV.topk(k)
            log_z = logits_BV.logsumexp(dim=1).numpy() if normalizer else None
        rows = len(logits_BV)
        answer = Answer(
            model=model,
            version="1",
            digest="",
            head=head,
            exact=np.ones(rows, np.bool_),
            scanned=np.full(rows, logits_BV.shape[1], np.int32),
            fallback=np.zeros(rows, np.bool_),
            normalizer=normalizer or "",
            log_z=log_z,
        )
        return TopKReply(best.indices.int().numpy(), best.values.numpy(), answer)


def tiny_options(folder: Path, words: int = 4) -> Options:
    """A whole demo that takes seconds."""
    random = np.random.default_rng(3)
    model, text, prompts = folder / "model", folder / "text.txt.gz", folder / "prompts.txt"
    model.mkdir()
    tiny_model().save(model)
    Vocabulary(WORDS).save(model)
    lines = [" ".join(random.choice(WORDS[2:], 9)) for _ in range(400)]
    write_paragraphs(text, lines)
    prompts.write_text("w1 w2 w3\nw4\n", encoding="utf-8")
    return Options(
        models=folder / "models",
        model=model,
        text=text,
        prompts=prompts,
        contexts=1500,
        clusters=4,
        words=words,
        beams=2,
    )
