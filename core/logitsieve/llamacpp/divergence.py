"""The KL divergence of two GGUF models over a text, from all their logits in float64.

For the softmaxes p, q of the logits a, b it is

    KL(p, q) = sum p (a - b) - log Z_a + log Z_b,

summed over slices of W's rows, so that memory grows with neither the text nor V.

Shape letters: N positions, S rows of a slice.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Float64, Int64
from logitsieve.llamacpp.context import LlamaContext
from logitsieve.llamacpp.model_file import GgufModel
from logitsieve.utils.options import Progress, no_progress

SLICE_ROWS = 8192


class Divergence(NamedTuple):
    tokens: Int64  # [N] the token that follows
    kl: Float64  # [N] nats, of the model from the reference
    best: Int64  # [2, N] each model's likeliest token, with ties by the lower id
    log_probs: Float64  # [2, N] nats, of the token that follows

    @property
    def agree(self) -> Float64:
        return np.asarray(self.best[0] == self.best[1], np.float64)


def compare(
    reference: LlamaContext,
    model: LlamaContext,
    windows: Iterable[list[int]],
    progress: Progress = no_progress,
) -> Divergence:
    """Compare both models at the positions of each window's second half, as llama-perplexity does.

    `windows` are token ids. `progress` gets ("compare", tokens read, 0). InvalidRequest names
    `model` if the vocabularies differ, and `text` if no window has two tokens.
    """
    for name in ("vocab_size", "vocabulary"):
        if getattr(reference.gguf, name) != getattr(model.gguf, name):
            raise InvalidRequest(
                "model", f"{model.gguf.path}, of another {name}", f"the {name} of the reference"
            )
    parts, seen = [], 0
    for tokens in windows:
        start = len(tokens) // 2
        if start + 1 < len(tokens):
            hidden_states = (
                reference.read_alone(tokens)[start:-1],
                model.read_alone(tokens)[start:-1],
            )
            parts.append(
                divergence(
                    reference.gguf, model.gguf, *hidden_states, np.array(tokens[start + 1 :])
                )
            )
        seen += len(tokens)
        progress("compare", seen, 0)
    if not parts:
        raise InvalidRequest("text", "less than two tokens", "text of two tokens or more")
    return Divergence(*(np.concatenate(one, axis=-1) for one in zip(*parts, strict=True)))


def divergence(
    first: GgufModel,
    second: GgufModel,
    hidden_first: Float32,
    hidden_second: Float32,
    tokens: Int64,
    slice_rows: int = SLICE_ROWS,
) -> Divergence:
    """Compare two output layers at their inputs [N, D]; `tokens` [N] follow in the text."""
    count = len(tokens)
    top, total, mean = np.full((2, count), -np.inf), np.zeros((2, count)), np.zeros(count)
    best, own = np.zeros((2, count), np.int64), np.zeros((2, count))
    layers = (first, hidden_first.astype(np.float64)), (second, hidden_second.astype(np.float64))
    for start in range(0, first.vocab_size, slice_rows):
        rows = slice(start, min(start + slice_rows, first.vocab_size))
        logits = [_logits(model, hidden_states, rows) for model, hidden_states in layers]
        here = np.flatnonzero((tokens >= rows.start) & (tokens < rows.stop))
        for i, logits_NS in enumerate(logits):
            likeliest, before = logits_NS.argmax(axis=1), top[i].copy()
            largest = logits_NS[np.arange(count), likeliest]
            best[i] = np.where(largest > before, start + likeliest, best[i])
            top[i] = np.maximum(before, largest)
            own[i, here] = logits_NS[here, tokens[here] - start]
            terms_NS, fade = np.exp(logits_NS - top[i][:, None]), np.exp(before - top[i])
            total[i] = total[i] * fade + terms_NS.sum(axis=1)
            if i == 0:
                mean = mean * fade + (terms_NS * (logits[0] - logits[1])).sum(axis=1)
    log_z = top + np.log(total)
    kl = np.maximum(mean / total[0] - log_z[0] + log_z[1], 0.0)
    return Divergence(tokens, kl, best, own - log_z)


def _logits(model: GgufModel, hidden_ND: Float64, rows: slice) -> Float64:
    logits_NS = hidden_ND @ model.matrix.rows(rows).astype(np.float64).T
    if model.bias is not None:
        logits_NS += model.bias[rows]
    if model.softcap:
        logits_NS = model.softcap * np.tanh(logits_NS / model.softcap)
    return np.asarray(logits_NS, np.float64)
