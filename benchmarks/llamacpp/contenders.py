"""What chooses the tokens: llama.cpp by itself, a decoder's heads in its place, or nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from logitsieve.api.decoder import SampleOptions, Target
from logitsieve.api.requests import Sampling, sampling
from logitsieve.api.results import Float32
from logitsieve.client.llamacpp import LlamaContext
from logitsieve.client.llamacpp_heads import UNEDITED, Chosen, DecoderOutput, DenseOutput
from logitsieve.decoding import LocalDecoder

PEER, BODY = "llama.cpp", "body"
HEADS: Mapping[str, Target] = {  # what is asked of the decoder, if its index has the head
    "exact": {"head": "exact"},
    "certified": {"head": "certified"},
    "screen": {"head": "screen"},
}
DRAWN: SampleOptions = {"seeds": 1, "temperature": 0.8, "top_p": 0.95, "min_p": 0.05}


class Chooser(Protocol):
    """Chooses a token from what the context returns; `headless` says which of the two it is."""

    headless: bool

    def choose(self, rows: Float32, step: int) -> Chosen:
        """The token of a row [1, V] of logits or [1, D] of hidden."""
        ...


class Ours:
    """A head of the decoder, greedy or drawing."""

    headless = True

    def __init__(
        self, context: LlamaContext, decoder: LocalDecoder, target: Target, *, draw: bool
    ) -> None:
        gguf = context.gguf
        self._output = DecoderOutput(decoder, target, gguf.vocab_size, gguf.softcap)
        self._drawing = sampling(1, 1, DRAWN) if draw else None

    def choose(self, rows: Float32, step: int) -> Chosen:
        drawing: Sampling | None = self._drawing
        return self._output.choose(
            rows, [UNEDITED], None if drawing is None else drawing._replace(step=step)
        )


class Greedy:
    """The largest of llama.cpp's own logits, by numpy: faster than llama.cpp's greedy sampler."""

    headless = False

    def choose(self, rows: Float32, step: int) -> Chosen:
        return DenseOutput().choose(rows, [UNEDITED], None)


class Chain:
    """llama.cpp's own chain of samplers over its own logits: temperature, top_p, min_p, a draw."""

    headless = False

    def __init__(self, context: LlamaContext) -> None:
        self._api, self._at = context._api, context._context
        made = {
            "llama_sampler_chain_default_params": (ctypes.c_bool,),
            "llama_sampler_chain_init": (ctypes.c_void_p, ctypes.c_bool),
            "llama_sampler_chain_add": (None, ctypes.c_void_p, ctypes.c_void_p),
            "llama_sampler_init_temp": (ctypes.c_void_p, ctypes.c_float),
            "llama_sampler_init_top_p": (ctypes.c_void_p, ctypes.c_float, ctypes.c_size_t),
            "llama_sampler_init_min_p": (ctypes.c_void_p, ctypes.c_float, ctypes.c_size_t),
            "llama_sampler_init_dist": (ctypes.c_void_p, ctypes.c_uint32),
            "llama_sampler_sample": (ctypes.c_int32, *[ctypes.c_void_p] * 2, ctypes.c_int32),
        }
        for name, (result, *arguments) in made.items():
            function = getattr(self._api, name)
            function.restype, function.argtypes = result, arguments
        self._chain = self._api.llama_sampler_chain_init(False)
        for sampler in (
            self._api.llama_sampler_init_temp(DRAWN["temperature"]),
            self._api.llama_sampler_init_top_p(DRAWN["top_p"], 1),
            self._api.llama_sampler_init_min_p(DRAWN["min_p"], 1),
            self._api.llama_sampler_init_dist(1),
        ):
            self._api.llama_sampler_chain_add(self._chain, sampler)

    def choose(self, rows: Float32, step: int) -> Chosen:
        token = self._api.llama_sampler_sample(self._chain, self._at, -1)
        scanned, proven = np.full(1, rows.shape[1], np.int32), np.zeros(1, np.bool_)
        return Chosen(np.array([token], np.int32), scanned, proven)


def contenders(
    context: LlamaContext, decoder: LocalDecoder, *, draw: bool
) -> dict[str, Chooser | None]:
    """Each by its name; None chooses nothing: the limit of any head."""
    held = decoder.index.manifest.heads
    found: dict[str, Chooser | None] = {PEER: Chain(context) if draw else Greedy(), BODY: None}
    for name, target in HEADS.items():
        if target.get("head") in held:
            found[name] = Ours(context, decoder, target, draw=draw)
    return found
