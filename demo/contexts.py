"""The contexts of the demo: inputs of the softmax while the language model reads.

Shape letters: W windows, T words of a window, N contexts, D hidden size.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from demo.excerpt import RUN, split
from demo.lstm import Lstm
from logitsieve.api.results import Int64
from logitsieve.training.vocabulary import Vocabulary
from logitsieve.training.vocabulary import windows as windows_of
from logitsieve.utils.options import Progress

# Files in the folder of the versions.
FIT, HELD_OUT, PROMPTS = "contexts.npy", "heldout.npy", "prompts.npy"
WINDOWS_AT_ONCE = 64


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


def windows(vocabulary: Vocabulary, paragraphs: Sequence[str], most: int) -> Int64:
    """Return windows [W, T] spread evenly over the text, about `most` words in all."""
    ids = vocabulary.encode("".join(f"{paragraph}\n" for paragraph in paragraphs))
    return windows_of(np.array(ids, np.int32), most)


def capture_contexts(model: Lstm, windows_WT: Int64, out: Path, progress: Progress) -> None:
    """Write the context of every word to the new file `out`, float16 [N, D]."""
    blocks = []
    for start in range(0, len(windows_WT), WINDOWS_AT_ONCE):
        read_BT = windows_WT[start : start + WINDOWS_AT_ONCE]
        hidden_BTD, _ = model.hidden_states(read_BT)
        blocks.append(hidden_BTD.reshape(read_BT.size, -1).astype(np.float16))
        progress(f"read to {out.stem}", start + len(read_BT), len(windows_WT))
    np.save(out, np.concatenate(blocks))
