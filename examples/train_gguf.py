# /// script
# requires-python = ">=3.11"
# dependencies = ["logitsieve[llamacpp,training]"]
#
# [tool.uv.sources]
# logitsieve = { path = ".." }
# ///
"""A small llama-architecture Transformer, trained on a text and written as a GGUF file.

python examples/train_gguf.py corpus.txt.gz lm.gguf
logitsieve capture -m lm.gguf --text corpus.txt.gz --out contexts
logitsieve build --weight lm.gguf --contexts contexts --out models/lm/1
logitsieve generate -m lm.gguf --index models/lm/1 --prompt "The"

Shape letters: B windows, T positions, H heads, D hidden size, V vocabulary.
"""

import gzip
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from torch import Tensor, nn
from torch.nn import functional

from logitsieve.llamacpp.model import LlamaModel

DIM, HEADS, LAYERS, FEED, WINDOW = 128, 4, 2, 384, 128
WORDS, BATCH, RATE = 4000, 16, 3e-3
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def vocabulary(text: str) -> tuple[list[str], list[int]]:
    """Tokens and their types: bytes, characters, and every beginning of the frequent words."""
    words = [word for word, _ in Counter(text.split()).most_common(WORDS)]
    begun = {f"▁{word[:end]}" for word in words for end in range(1, len(word) + 1)}
    pieces = sorted({"▁"} | set("".join(words)) | begun)
    named = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return named + pieces, [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)


class Layer(nn.Module):
    """A llama block; its parameters have the names of a GGUF."""

    def __init__(self) -> None:
        super().__init__()
        self.attn_norm, self.ffn_norm = nn.RMSNorm(DIM, 1e-5), nn.RMSNorm(DIM, 1e-5)
        self.attn_q, self.attn_k = (nn.Linear(DIM, DIM, bias=False) for _ in range(2))
        self.attn_v, self.attn_output = (nn.Linear(DIM, DIM, bias=False) for _ in range(2))
        self.ffn_gate, self.ffn_up = (nn.Linear(DIM, FEED, bias=False) for _ in range(2))
        self.ffn_down = nn.Linear(FEED, DIM, bias=False)

    def forward(self, x_BTD: Tensor, turns_TD: Tensor) -> Tensor:
        a = self.attn_norm(x_BTD)
        q, k, v = (
            layer(a).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.attn_q, self.attn_k, self.attn_v)
        )
        mixed = functional.scaled_dot_product_attention(
            turned(q, turns_TD), turned(k, turns_TD), v, is_causal=True
        )
        x_BTD = x_BTD + self.attn_output(mixed.transpose(1, 2).flatten(2))
        f = self.ffn_norm(x_BTD)
        fed: Tensor = self.ffn_down(functional.silu(self.ffn_gate(f)) * self.ffn_up(f))
        return x_BTD + fed


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Rotary positions of pairs of neighbours, as llama.cpp turns them in this architecture."""
    return torch.view_as_real(
        torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * turns
    ).flatten(-2)


class Transformer(nn.Module):
    """Embeddings, layers and an output matrix of its own."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.token_embd = nn.Embedding(vocab_size, DIM)
        self.blk = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.output_norm = nn.RMSNorm(DIM, 1e-5)
        self.output = nn.Linear(DIM, vocab_size, bias=False)
        size = DIM // HEADS
        rates = 10_000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(WINDOW), rates)
        self.turns: Tensor
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Logits [B, T, V]."""
        x = self.token_embd(ids_BT)
        for layer in self.blk:
            x = layer(x, self.turns)
        logits: Tensor = self.output(self.output_norm(x))
        return logits


def write(path: Path, model: Transformer, tokens: list[str], kinds: list[int], head: str) -> None:
    """The model as GGUF, its output matrix of the type `head`, all else float32."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(WINDOW)
    writer.add_embedding_length(DIM)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([float(len(token)) for token in tokens])
    writer.add_token_types(kinds)
    for name, values in model.state_dict().items():
        kind = GGMLQuantizationType[head if name == "output.weight" else "F32"]
        writer.add_tensor(name, quantize(values.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def train(model: Transformer, ids: Tensor, steps: int) -> None:
    """Adam on random windows of the text."""
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for step in range(steps):
        starts = torch.randint(len(ids) - WINDOW - 1, (BATCH, 1))
        windows_BT = ids[starts + torch.arange(WINDOW + 1)]
        logits = model(windows_BT[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), windows_BT[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1:,} of {steps:,}: {loss.item():.2f} nats a token")


def main(corpus: str, out: str, steps: str = "1500", head: str = "Q8_0") -> None:
    """Write an untrained model, tokenize the text by it, train, and write the model again."""
    torch.manual_seed(0)
    opened: Any = gzip.open if corpus.endswith(".gz") else open
    with opened(corpus, "rt", encoding="utf-8") as file:
        text = file.read()
    tokens, kinds = vocabulary(text)
    model = Transformer(len(tokens))
    write(Path(out), model, tokens, kinds, head)
    with LlamaModel(out) as untrained:
        ids = torch.tensor(untrained.tokenize(text, special=False))
    print(f"{len(ids):,} tokens, of {len(tokens):,} in the vocabulary")
    train(model, ids, int(steps))
    write(Path(out), model, tokens, kinds, head)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
