"""The Transformer of nmt_model.py a word at a time: keys and values of earlier words are kept.

Vaswani et al. 2017, Attention Is All You Need; pre-norm layers as torch.nn.TransformerDecoder has
them. Shape letters: B hypotheses, S source words, T target words so far, D hidden size, H heads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from logitsieve.api.results import Float32, Int32


class Attention:
    """One attention block, its projections taken apart."""

    def __init__(self, block: Any) -> None:
        self.heads = block.num_heads
        self._weights = block.in_proj_weight.chunk(3)
        self._biases = block.in_proj_bias.chunk(3)
        self._out = block.out_proj

    def project(self, part: int, inputs_BTD: Tensor) -> Tensor:
        """[B, H, T, D/H]; part 0 is the query, 1 the key, 2 the value."""
        made = functional.linear(inputs_BTD, self._weights[part], self._biases[part])
        rows, words, dim = made.shape
        return made.view(rows, words, self.heads, dim // self.heads).transpose(1, 2)

    def __call__(
        self, inputs_B1D: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """[B, 1, D] for one word each."""
        query = self.project(0, inputs_B1D)
        found = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        mixed: Tensor = self._out(found.transpose(1, 2).flatten(2))
        return mixed


class Translating:
    """A batch of sentences being translated: `step` is what `beam_search` calls."""

    @torch.inference_mode()
    def __init__(self, model: Any, sentences: list[list[str]], start: int) -> None:
        memory, padded = model.encode(model.batch(sentences))
        self._model, self._decoder = model, model.transformer.decoder
        self._own = [Attention(layer.self_attn) for layer in self._decoder.layers]
        self._cross = [Attention(layer.multihead_attn) for layer in self._decoder.layers]
        self._mask = ~padded[:, None, None]
        rows, dim = len(sentences), memory.shape[2]
        self._memory = [[block.project(part, memory) for part in (1, 2)] for block in self._cross]
        heads = self._own[0].heads
        empty = memory.new_empty(rows, heads, 0, dim // heads)
        self._words = [[empty, empty] for _ in self._own]
        self.start = self._read(np.full(rows, start, np.int32))

    @torch.inference_mode()
    def step(self, parents: Int32, tokens: Int32) -> Float32:
        """Contexts [B, D] after one more word each, of rows taken from those before."""
        chosen = torch.from_numpy(parents).long()
        if len(chosen) != len(self._mask) or (parents != np.arange(len(parents))).any():
            self._mask = self._mask[chosen]
            self._words = [[each[chosen] for each in pair] for pair in self._words]
            self._memory = [[each[chosen] for each in pair] for pair in self._memory]
        return self._read(tokens)

    def _read(self, tokens: Int32) -> Float32:
        place = self._words[0][0].shape[2]
        embedded = self._model.target(torch.from_numpy(tokens).long()) * 4
        x_B1D = (embedded + self._model.position[place])[:, None]
        for number, layer in enumerate(self._decoder.layers):
            x_B1D = x_B1D + self._attend_to_words(number, layer.norm1(x_B1D))
            keys, values = self._memory[number]
            x_B1D = x_B1D + self._cross[number](layer.norm2(x_B1D), keys, values, self._mask)
            inner = functional.relu(layer.linear1(layer.norm3(x_B1D)))
            x_B1D = x_B1D + layer.linear2(inner)
        hidden: Float32 = self._decoder.norm(x_B1D)[:, 0].numpy()
        return hidden

    def _attend_to_words(self, number: int, inputs_B1D: Tensor) -> Tensor:
        block, before = self._own[number], self._words[number]
        now = [block.project(part, inputs_B1D) for part in (1, 2)]
        self._words[number] = [torch.cat(pair, dim=2) for pair in zip(before, now, strict=True)]
        return block(inputs_B1D, *self._words[number])
