"""The contexts of the demo: inputs of the softmax while the language model reads.

Shape letters: N windows, T words of a window.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from demo.excerpt import RUN, split
from logitsieve.index_builder.capture import CaptureConfig, capture
from logitsieve.training import trainer
from logitsieve.training.trainer import LanguageModel, Vocabulary
from logitsieve.training.trainer.corpus import WINDOWS_AT_ONCE
from logitsieve.utils.options import Progress

HELD_OUT, PROMPTS = "heldout.npy", "prompts.npy"  # files in the folder of the versions


class Texts(NamedTuple):
    """Paragraphs of the training text, and two halves of unseen ones."""

    fit: list[str]
    choose: list[str]  # decides how many candidates meet the target precision
    judge: list[str]  # only judges


def three_texts(paragraphs: list[str]) -> Texts:
    """Split; runs of the held-out text go to its halves in turn."""
    fit, unseen = split(paragraphs)
    runs = [unseen[start : start + RUN] for start in range(0, len(unseen), RUN)]
    return Texts(fit, list(chain(*runs[::2])), list(chain(*runs[1::2])))


def windows(vocabulary: Vocabulary, paragraphs: Sequence[str], most: int) -> Tensor:
    """Return windows int64 [N, T] spread evenly over the text, about `most` words in all."""
    ids = vocabulary.encode("".join(f"{paragraph}\n" for paragraph in paragraphs))
    return torch.cat(list(trainer.windows(np.array(ids, np.int32), most)))


def capture_contexts(
    model: LanguageModel, windows_NT: Tensor, out: Path, progress: Progress
) -> None:
    """Write the context of every word as `00000.npy` in the new folder `out`."""
    total = windows_NT.numel()
    capture(
        model,
        torch.split(windows_NT, WINDOWS_AT_ONCE),
        out,
        output_layer="output",
        config=CaptureConfig(max_rows=total, shard_rows=total),
        progress=lambda _, seen, __: progress(f"read to {out.name}", seen, total),
    )
