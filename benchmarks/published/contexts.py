"""Contexts of a published model on text of each kind, read once into the cache.

A folder of a model holds `NAME.gguf`, `<kind>.npy` (float32 [N, D]) for each kind, `primer.npy`,
and of other chapters of English prose `fit.npy`, which begins with the primer, as a user's contexts
do, and `heldout.npy`. `sequences.json` has for each text the token ids that were read, and from
which place on contexts were taken; for the primer a SHA-256 of length and text. Chat is the
model's own: answers to `prompts.txt`, drawn from llama.cpp's own logits.

Shape letters: N contexts, D hidden size.
"""

import json
import os
from collections import deque
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.published.texts import TEXTS
from demo.published import CACHE, model_file
from logitsieve.api.results import Float32
from logitsieve.client.llamacpp import generate
from logitsieve.index_builder.capture import llamacpp as capture
from logitsieve.index_builder.capture.llamacpp import Stretch, primer, read_primer, read_stretches
from logitsieve.llamacpp import LlamaContext, chat_prompt
from logitsieve.utils.options import Progress, no_progress

JUDGED = ("english", "german", "japanese", "python", "chat")  # kinds
PARTS = (*JUDGED, "primer", "fit", "heldout")
ROWS = {**dict.fromkeys(JUDGED, 1200), "fit": 4000, "heldout": 1000}
WINDOW = 128  # tokens read at a stretch
SKIPPED = 8  # places at the beginning of a stretch, too early to tell what the text is
DRAWN: dict[str, Any] = {"max_tokens": 96, "temperature": 0.8, "top_p": 0.95}  # answers
PLAIN = "Question: {prompt}\nAnswer:"  # for a file without a template


def contexts_folder(name: str, cache: Path = CACHE, progress: Progress = no_progress) -> Path:
    """The folder of a model with its contexts, which are read if they are not there."""
    folder, path = cache / name, model_file(name, cache)
    listed = folder / "sequences.json"
    sequences = json.loads(listed.read_text()) if listed.exists() else {}
    mark = sha256(f"{capture.LENGTH}{primer()}".encode()).hexdigest()
    old = () if sequences.get("primer") == mark else ("primer", "fit")
    missing = [part for part in PARTS if part in old or not (folder / f"{part}.npy").exists()]
    if not missing and sequences:
        return folder
    with LlamaContext(path, positions=2 * WINDOW, threads=os.cpu_count() or 1) as context:
        for part in missing:
            if part == "primer":
                rows = read_primer(context, progress)
            else:
                if part not in sequences:
                    sequences[part] = stretches(context, part, cache, 2 * ROWS[part], progress)
                    listed.write_text(json.dumps(sequences))
                found = [Stretch(*one) for one in sequences[part]]
                rows = read(context, found, ROWS[part], part, progress)
            if part == "fit":
                rows = np.concatenate([np.load(folder / "primer.npy"), rows])
            np.save(folder / f"{part}.reading.npy", rows)
            (folder / f"{part}.reading.npy").rename(folder / f"{part}.npy")
    listed.write_text(json.dumps(sequences | {"primer": mark}))
    return folder


def stretches(
    context: LlamaContext, part: str, cache: Path, tokens: int, progress: Progress = no_progress
) -> list[Stretch]:
    """About `tokens` tokens of the text of a part; for chat, all answers to the prompts."""
    if part == "chat":
        return answers(context, progress)
    return windows(context, part, cache, -(-tokens // (WINDOW - SKIPPED)))


def windows(context: LlamaContext, part: str, cache: Path, count: int) -> list[Stretch]:
    """Evenly spread stretches of a text; `heldout` has the last fifth of the text of `fit`."""
    text = TEXTS["fit" if part == "heldout" else part](cache)
    if part in ("fit", "heldout"):
        cut = len(text) * 4 // 5
        text = text[:cut] if part == "fit" else text[cut:]
    ids: list[int] = []
    for start in range(0, len(text), 1 << 16):
        ids += context.tokenize(text[start : start + (1 << 16)], begin=False, special=False)
    length = WINDOW - len(context.begin)
    starts = np.linspace(0, len(ids) - length, count).astype(int).tolist()
    return [Stretch(context.begin + ids[start : start + length], SKIPPED) for start in starts]


def answers(context: LlamaContext, progress: Progress, count: int | None = None) -> list[Stretch]:
    """Each prompt followed by the model's answer; of the first `count` prompts."""
    found, questions = [], prompts()[:count]
    for number, prompt in enumerate(questions):
        tokens = context.tokenize(asked(context, prompt))
        generation = generate(context, tokens, seeds=number, **DRAWN)
        deque(generation, maxlen=0)
        answer = [token for token in generation.ids[0] if not context.ends(token)]
        found.append(Stretch(tokens + answer, len(tokens) - 1))
        progress("answer prompts", number + 1, len(questions))
    return found


def prompts() -> list[str]:
    return (Path(__file__).parent / "prompts.txt").read_text(encoding="utf-8").splitlines()


def asked(context: LlamaContext, prompt: str) -> str:
    """A prompt as the file's template of chats puts it."""
    if context.gguf.chat_template is None:
        return PLAIN.format(prompt=prompt)
    return chat_prompt(context, prompt)


def read(
    context: LlamaContext, sequences: list[Stretch], count: int, part: str, progress: Progress
) -> Float32:
    """`count` contexts or fewer, spread evenly over the places of all sequences."""
    found = read_stretches(context, sequences, progress=progress, stage=f"read {part}")
    places = np.linspace(0, len(found) - 1, min(count, len(found))).astype(int)
    return np.ascontiguousarray(found[places])
