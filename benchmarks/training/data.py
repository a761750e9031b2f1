"""Texts to train on: `docs.txt.gz` as ids, encoded once into the cache folder for each vocabulary.

What judges is taken in blocks spread over the text, so that it is of the same kinds of prose; the
vocabulary is that of the whole text.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from logitsieve.training.trainer.corpus import FOLDER, Corpus, encode
from logitsieve.utils.options import Progress

TEXT = "docs.txt.gz"
BLOCKS = 40
VALID_WORDS = 40_000


def docs(
    shared: Path,
    cache: Path,
    vocabulary: int,
    progress: Progress,
    *,
    text: Path | None = None,
    valid_words: int = VALID_WORDS,
) -> Corpus:
    """The words of docs.txt.gz, or of another text; SystemExit where that is absent."""
    source = text or shared / "data" / TEXT
    if not source.exists():
        raise SystemExit(f"{source} is absent: --text names another text, words split by spaces")
    folder = cache / "texts" / f"{source.name}-{source.stat().st_size}-{vocabulary}"
    if (folder / FOLDER).exists():
        return hold_out(Corpus.open(folder), valid_words)
    folder.mkdir(parents=True, exist_ok=True)
    whole = encode(folder, source, None, size=vocabulary, valid_share=1e-6, progress=progress)
    return hold_out(whole, valid_words)


def hold_out(corpus: Corpus, words: int, blocks: int = BLOCKS) -> Corpus:
    """`words` of the training text to judge by, in blocks, and the rest to train on.

    Half of the text at most, whatever is asked.
    """
    size = len(corpus.train)
    each = max(1, min(words, size // 2) // blocks)
    starts = np.linspace(0, size - each, blocks).astype(np.int64)
    judged = np.zeros(size, bool)
    judged[(starts[:, None] + np.arange(each)).ravel()] = True
    ids = np.asarray(corpus.train)
    train = ids[~judged]
    counts = np.bincount(train, minlength=len(corpus.vocabulary)).astype(np.int64)
    return corpus._replace(train=train, valid=ids[judged], counts=counts)
