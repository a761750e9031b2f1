"""A Transformer of two layers as GGUF, of random weights, with a tokenizer of words.

Its output rows are spread enough that greedy decoding is no single repeated token.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Make = Callable[..., Path]  # the fixture `make_gguf`

TEXT = (
    "the of and to in is it for that with as was on are by be this have from or one had not "
    "but what all were when we there can an your which their said if do will each about how "
    "up out them then she many some so these would other into has more her two like him see "
    "time could no make than first been its who now people my made over did down only way "
    "find use may water long little very after words called just where most know get through "
    "back much before go good new write our used me man too any day same right look think "
    "also around another came "
)
WORDS = TEXT.split()
LAYERS, HEADS, FEED = 2, 4, 128
POSITIONS = 512
UNKNOWN, BEGIN, END = 0, 1, 2
NORMAL, UNKNOWN_TYPE, CONTROL, BYTE = 1, 2, 3, 6

CHAT = """\
{{ bos_token }}{% for message in messages %}
    {% if message.role == "never" %}{% continue %}{% endif %}
{{ message.role }}: {{ message.content }}{{ eos_token }}
{% endfor %}
answer:"""


def byte_level_tokens() -> tuple[list[str], list[int]]:
    """Special tokens, and each byte as byte-level pairs spell it."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [chr(256 + number) for number in range(256 - len(shown))]
    words = ["<unk>", "<s>", "</s>", *map(chr, shown), *rest, "ab"]
    return words, [UNKNOWN_TYPE, CONTROL, CONTROL] + [NORMAL] * (len(words) - 3)


def tokens() -> tuple[list[str], list[int]]:
    """Tokens by id and their types: special ones, bytes, characters, beginnings of words."""
    begun = {f"▁{word[:end]}" for word in WORDS for end in range(1, len(word) + 1)}
    pieces = sorted(set("▁.,abcdefghijklmnopqrstuvwxyz") | begun, key=lambda one: (len(one), one))
    special = ["<unk>", "<s>", "</s>"]
    octets = [f"<0x{number:02X}>" for number in range(256)]
    kinds = [UNKNOWN_TYPE, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)
    return special + octets + pieces, kinds


def write_model(
    path: Path,
    *,
    head: str = "F32",
    body: str = "F32",
    architecture: str = "llama",
    dim: int = 64,
    layers: int = LAYERS,
    tied: bool = False,
    bias: bool = False,
    seed: int = 0,
    vocabulary: bool = True,
    pre: str = "",
    tokenizer: str = "",
    octets: bool = True,
    extra: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    chat_template: str = "",
    leave_out: tuple[str, ...] = (),
    keys: tuple[tuple[str, Any], ...] = (),
    split: int = 0,
    **metadata: float,
) -> Path:
    """Write the model `path`; `metadata` are float values of the architecture, such as a softcap.

    `pre`: byte-level pairs by this pre-tokenizer, not words; `tokenizer`: another one,
    without special ids; `octets`: the words have tokens for
    bytes; `extra`: more tokens; `without`: tokens that are spelled as none. `keys` are metadata by
    whole names, of integers, booleans, texts, or lists. `split`: tensors of a file at most.
    `head` is the type of its output matrix, of its embeddings where `tied`, `body` of its layers'
    matrices.
    """
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    words, kinds = byte_level_tokens() if pre else tokens()
    if not octets:
        words = [word.replace("<0x", "<none") for word in words]
    words = [f"<none {word}>" if word in without else word for word in words]
    words, kinds = [*words, *extra], kinds + [NORMAL] * len(extra)
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, architecture, split_max_tensors=split)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(dim)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(dim // HEADS)
    writer.add_vocab_size(len(words))
    for key, value in metadata.items():
        writer.add_float32(f"{architecture}.{key}", value)
    for key, value in keys:
        writers: dict[type, Any] = {
            bool: writer.add_bool,
            list: writer.add_array,
            str: writer.add_string,
        }
        writers.get(type(value), writer.add_uint32)(key, value)
    if vocabulary:
        writer.add_tokenizer_model(tokenizer or ("gpt2" if pre else "llama"))
        if pre:
            writer.add_tokenizer_pre(pre)
            writer.add_token_merges(["a b"])
        writer.add_token_list(words)
        writer.add_token_scores([float(len(word)) for word in words])
        writer.add_token_types(kinds)
        if not tokenizer:
            writer.add_bos_token_id(BEGIN)
            writer.add_eos_token_id(END)
            writer.add_unk_token_id(UNKNOWN)
        if chat_template:
            writer.add_chat_template(chat_template)
    else:
        writer.add_tokenizer_model("no_vocab")
    for name, values in weights(rng, len(words), dim, layers, architecture, tied, bias).items():
        if name in leave_out:
            continue
        outer = name == ("token_embd.weight" if tied else "output.weight")
        inner = body if name.startswith("blk.") and values.ndim == 2 else "F32"
        kind = GGMLQuantizationType[head if outer else inner]
        stored: Any = quantize(values, kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def weights(
    rng: np.random.Generator,
    vocab: int,
    dim: int,
    layers: int,
    architecture: str,
    tied: bool,
    bias: bool,
) -> dict[str, np.ndarray]:
    def drawn(*shape: int) -> np.ndarray:
        values = rng.standard_normal(shape, np.float32)
        return values / np.float32(shape[-1] ** 0.5)

    made = {"token_embd.weight": 8 * drawn(vocab, dim), "output_norm.weight": np.ones(dim)}
    for layer in range(layers):
        shapes = {
            **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (dim, dim)),
            **dict.fromkeys(("ffn_gate", "ffn_up"), (FEED, dim)),
            "ffn_down": (dim, FEED),
        }
        made |= {f"blk.{layer}.{name}.weight": drawn(*shape) for name, shape in shapes.items()}
        norms = ["attn_norm", "ffn_norm"]
        if architecture.startswith("gemma"):
            norms += ["post_attention_norm", "post_ffw_norm"]
        made |= {f"blk.{layer}.{name}.weight": np.ones(dim) for name in norms}
        if architecture in ("gemma3", "gemma4", "qwen3"):
            heads = ("attn_q_norm", "attn_k_norm")
            made |= {f"blk.{layer}.{name}.weight": np.ones(dim // HEADS) for name in heads}
        if architecture == "qwen2":
            biased = ("attn_q", "attn_k", "attn_v")
            made |= {f"blk.{layer}.{name}.bias": drawn(dim) for name in biased}
    if not tied:
        made["output.weight"] = 4 * drawn(vocab, dim)
    if bias:
        made["output.bias"] = drawn(vocab)
    return {name: np.asarray(values, np.float32) for name, values in made.items()}


def gemma4(dim: int = 64, rotated: int = 64 // HEADS) -> dict[str, Any]:
    """Options of `write_model` for a Gemma 4 with as many `rotated` dimensions."""
    wanted = {
        **dict.fromkeys(
            ("key_length", "value_length", "key_length_swa", "value_length_swa"), dim // HEADS
        ),
        "sliding_window": 64,
        "shared_kv_layers": 0,
        "sliding_window_pattern": [True] * LAYERS,
    }
    of_model = {f"gemma4.attention.{name}": value for name, value in wanted.items()}
    of_model |= {
        "gemma4.rope.dimension_count_swa": rotated,
        "gemma4.embedding_length_per_layer_input": 0,
    }
    return {"architecture": "gemma4", "tied": True, "keys": tuple(of_model.items())}
