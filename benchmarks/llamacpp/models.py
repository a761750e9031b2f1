"""GGUF models whose bodies are random and whose tokenizer is one of words and frequent phrases.

A body costs what a trained one of its shape costs. Tokens are the words of a text, and runs of two
or three words, of which a unigram tokenizer (Kudo 2018, arXiv:1804.10959) takes the likeliest
segmentation.

Shape letters: D hidden size, F width of a feed-forward layer, V vocabulary, N words of a text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize

from logitsieve.api.results import Float32

POSITIONS = 4096
SPACE = "▁"  # that a token of a word begins with
SPECIAL = ("<unk>", "<s>", "</s>")
MIXED = 0.1  # what each layer adds, in sizes of an embedding
COMMON = 0.5  # the part that all embeddings share, in sizes of the part of their own


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; `rows` is V."""

    architecture: str
    rows: int
    dim: int
    layers: int
    heads: int
    shared_heads: int  # of keys and values
    head_dim: int
    feed: int


SHAPES = {
    "gemma-3-270m": Shape("gemma3", 262_144, 640, 18, 4, 1, 256, 2048),
    "128k-2048": Shape("llama", 128_256, 2048, 1, 32, 8, 64, 8192),
    "32k-2048": Shape("llama", 32_000, 2048, 1, 32, 8, 64, 8192),
}


class Tokens(NamedTuple):
    """Tokens by id, the logarithm of their frequency, and their types."""

    texts: list[str]
    scores: list[float]
    types: Sequence[int]


def tokens_of(paragraphs: list[str], count: int) -> Tokens:
    """`count` tokens: special ones, characters, words, and phrases where there is room.

    No text becomes phrases, as none of one language becomes most of a large model's tokens.
    """
    letters = sorted({"\n", SPACE}.union(*paragraphs) - {" "})
    times = Counter(word for line in paragraphs for word in line.split())
    room = count - len(SPECIAL) - len(letters)
    words = [word for word, _ in times.most_common()][:room]
    total = sum(times[word] for word in words)
    scores = {SPACE + word: float(np.log(times[word] / total)) for word in words}
    runs = phrases(paragraphs, words, room - len(words))
    unused = {
        "".join(SPACE + word for word in run): sum(scores[SPACE + word] for word in run) - 1
        for run in runs
    }
    rare = float(np.log(0.1 / total))
    texts = [*SPECIAL, *letters, *scores, *unused]
    return Tokens(
        texts,
        [0.0] * len(SPECIAL) + [rare] * len(letters) + [*scores.values(), *unused.values()],
        [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
        + [TokenType.NORMAL] * (len(texts) - len(SPECIAL)),
    )


def phrases(paragraphs: list[str], words: list[str], count: int) -> list[tuple[str, ...]]:
    """The most frequent runs of two and of three words in one paragraph."""
    places = {word: place for place, word in enumerate(words)}
    text_N = np.array(
        [places.get(word, -1) for line in paragraphs for word in [*line.split(), "\n"]], np.int64
    )
    found: list[tuple[int, tuple[str, ...]]] = []
    for length in (2, 3):
        keys, whole = np.zeros(len(text_N) - length + 1, np.int64), None
        for ahead in range(length):
            part = text_N[ahead : len(text_N) - length + 1 + ahead]
            keys = keys * len(words) + part
            whole = part >= 0 if whole is None else whole & (part >= 0)
        distinct, times = np.unique(keys[whole], return_counts=True)
        for place in np.argsort(-times, kind="stable")[:count]:
            key, run = int(distinct[place]), []
            for _ in range(length):
                key, word = divmod(key, len(words))
                run.append(words[word])
            found.append((int(times[place]), tuple(reversed(run))))
    found.sort(key=lambda one: -one[0])
    return [run for _, run in found[:count]]


def write_gguf(
    path: Path, shape: Shape, tokens: Tokens, kind: str, head: Float32 | None = None
) -> None:
    """A model of one type of weights; `head` [V, D] is its output matrix, else random."""
    writer = GGUFWriter(path, shape.architecture)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(shape.dim)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.shared_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    if shape.architecture == "gemma3":
        writer.add_sliding_window(512)
    writer.add_vocab_size(len(tokens.texts))
    writer.add_tokenizer_model("t5")
    writer.add_token_list(tokens.texts)
    writer.add_token_scores(tokens.scores)
    writer.add_token_types(tokens.types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    for name, values in weights(shape):
        stored = head if name == "output.weight" and head is not None else values
        chosen = GGMLQuantizationType["F32" if stored.ndim == 1 else kind]
        rows: Any = quantize(stored, chosen)
        writer.add_tensor(name, rows, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def weights(shape: Shape) -> Iterator[tuple[str, Float32]]:
    """Names and values of all tensors, the same ones each time."""
    random = np.random.default_rng(0)

    def drawn(rows: int, columns: int) -> Float32:
        values = random.standard_normal((rows, columns), np.float32)
        values *= np.float32(columns**-0.5)
        return values

    dim, gemma = shape.dim, shape.architecture == "gemma3"
    embedding = drawn(shape.rows, dim) + COMMON * drawn(1, dim)
    if not gemma:  # whose graph multiplies embeddings by the root of D
        embedding *= np.float32(dim**0.5)
    yield "token_embd.weight", embedding
    yield "output_norm.weight", np.ones(dim, np.float32)
    yield "output.weight", drawn(shape.rows, dim)
    wide, narrow = shape.heads * shape.head_dim, shape.shared_heads * shape.head_dim
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        yield f"{block}attn_q.weight", drawn(wide, dim)
        yield f"{block}attn_k.weight", drawn(narrow, dim)
        yield f"{block}attn_v.weight", drawn(narrow, dim)
        yield f"{block}attn_output.weight", drawn(dim, wide)
        yield f"{block}ffn_gate.weight", drawn(shape.feed, dim)
        yield f"{block}ffn_up.weight", drawn(shape.feed, dim)
        yield f"{block}ffn_down.weight", drawn(dim, shape.feed)
        for name in ("attn_norm", "ffn_norm"):
            yield f"{block}{name}.weight", np.ones(dim, np.float32)
        if gemma:
            for name in ("attn_q_norm", "attn_k_norm"):
                yield f"{block}{name}.weight", np.ones(shape.head_dim, np.float32)
            for name in ("post_attention_norm", "post_ffw_norm"):
                yield f"{block}{name}.weight", np.full(dim, MIXED, np.float32)
