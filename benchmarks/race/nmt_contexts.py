"""Decoder contexts of the German-English Transformer: teacher-forced inputs of its output layer.

Vaswani et al. 2017, Attention Is All You Need (the model); what is captured is what a decoder
hands to the softmax when its translation so far is the reference.
Shape letters: N contexts, D hidden size, B sentences of a batch, T target words.
"""

import gzip
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from logitsieve.utils.options import Progress

FIT_CONTEXTS = 150_000  # spread over train.tsv: every so-manieth sentence
SENTENCES = 32  # translated at once
LONGEST = 126  # target words; the model has 128 positions, two of them START and END

Pair = tuple[list[str], list[str]]


def prepare(shared: Path, cache: Path, progress: Progress) -> None:
    """Write `nmt.npz`: W, b, H_fit (both domains), H_captions and H_software, of unseen text."""
    folder = shared / "data" / "nmt-de-en"
    module = load_model_file(folder / "nmt_model.py")
    model = module.Translator.load(folder)
    pairs = read_pairs(folder / "train.tsv.gz")
    words = sum(len(target) + 1 for _, target in pairs)
    fit = pairs[:: max(1, round(words / FIT_CONTEXTS))]
    captions, software = (read_pairs(folder / f"{name}.tsv") for name in ("test", "test-software"))
    np.savez(
        cache / "nmt.npz",
        W=model.output.weight.detach().numpy(),
        b=model.output.bias.detach().numpy(),
        H_fit=capture(module, model, fit, "nmt train", progress),
        H_captions=capture(module, model, captions, "nmt captions", progress),
        H_software=capture(module, model, software, "nmt software", progress),
    )


def load_model_file(path: Path) -> Any:
    """The module of `nmt_model.py`, which lies beside its weights and in no package."""
    spec = importlib.util.spec_from_file_location("nmt_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_pairs(path: Path) -> list[Pair]:
    """German and English words of each line."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    sides = (line.split("\t") for line in text.split("\n") if line)
    return [(german.split(), english.split()) for german, english in sides]


@torch.inference_mode()
def capture(
    module: Any, model: Any, pairs: list[Pair], stage: str, progress: Progress
) -> np.ndarray:
    """float16 [N, D] in the order of the text: one context for each target word and each END."""
    index = {word: number for number, word in enumerate(model.target_words)}
    found = []
    for start in range(0, len(pairs), SENTENCES):
        batch = pairs[start : start + SENTENCES]
        targets = [
            torch.tensor([module.START, *(index.get(w, module.UNKNOWN) for w in words[:LONGEST])])
            for _, words in batch
        ]
        padded_BT = pad_sequence(targets, batch_first=True, padding_value=module.PAD)
        memory, mask = model.encode(model.batch([source for source, _ in batch]))
        hidden_BTD = model.hidden(padded_BT, memory, mask)
        found += [hidden_BTD[row, : len(ids)].half() for row, ids in enumerate(targets)]
        progress(stage, min(start + SENTENCES, len(pairs)), len(pairs))
    return torch.cat(found).numpy()
