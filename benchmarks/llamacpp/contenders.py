"""The contenders: llama.cpp's own output layer, heads of a decoder in its place, and no head."""

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.raw import GRADED, grades_of
from logitsieve.api.keywords import ModelSpec, SampleOptions
from logitsieve.api.requests import Sampling
from logitsieve.api.results import Float32
from logitsieve.client.llamacpp import LlamaContext
from logitsieve.client.llamacpp_heads import (
    Chosen,
    DecoderOutput,
    DenseOutput,
    OutputHead,
    RowEdits,
)
from logitsieve.decoding import LocalDecoder

PEER, BODY = "llama.cpp", "body"
HEADS = ("full", *GRADED, "screen")  # and grades of the sketch
DRAWN: Mapping[str, SampleOptions] = {
    "no filter": {"seeds": 1, "temperature": 0.8},
    "top_p 0.95": {"seeds": 1, "temperature": 0.8, "top_p": 0.95},
    "top_p 0.95, min_p 0.05": {"seeds": 1, "temperature": 0.8, "top_p": 0.95, "min_p": 0.05},
}


class Chain(DenseOutput):
    """llama.cpp's own chain of samplers over its own logits: temperature, top_p, min_p, a draw."""

    def __init__(self, context: LlamaContext, drawing: Sampling) -> None:
        self._api, self._at = context._api, context._contexts[0]
        made = {
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
        samplers = [self._api.llama_sampler_init_temp(drawing.temperature)]
        if drawing.top_p < 1.0:
            samplers.append(self._api.llama_sampler_init_top_p(drawing.top_p, 1))
        if drawing.min_p > 0.0:
            samplers.append(self._api.llama_sampler_init_min_p(drawing.min_p, 1))
        for sampler in (*samplers, self._api.llama_sampler_init_dist(1)):
            self._api.llama_sampler_chain_add(self._chain, sampler)

    def choose(self, rows: Float32, edits: Sequence[RowEdits], drawing: Sampling | None) -> Chosen:
        """A draw from the last logits of the context, which it knows by itself."""
        token = self._api.llama_sampler_sample(self._chain, self._at, -1)
        scanned, proven = np.full(1, rows.shape[1], np.int32), np.zeros(1, np.bool_)
        return Chosen(np.array([token], np.int32), scanned, proven)


class IkChain(DenseOutput):
    """ik_llama.cpp's samplers: its default top_k of 40 first, for its top_p alone sorts all V."""

    TOP_K = 40

    def __init__(self, context: LlamaContext, drawing: Sampling) -> None:
        from ik_llama_cpp import _ctypes_api

        self._api, self._at, self._drawing = _ctypes_api, context._contexts[0], drawing
        kind = [("id", np.int32), ("logit", np.float32), ("p", np.float32)]
        self._candidates = np.zeros(context.gguf.vocab_size, kind)
        self._ids = np.arange(len(self._candidates), dtype=np.int32)

    def choose(self, rows: Float32, edits: Sequence[RowEdits], drawing: Sampling | None) -> Chosen:
        """A draw from the last logits of the context."""
        api, held = self._api, self._candidates
        held["id"], held["logit"] = self._ids, rows[0]
        data = ctypes.cast(held.ctypes.data, ctypes.POINTER(api.llama_token_data))
        listed = api.llama_token_data_array(data, len(held), -1, False)
        at = ctypes.byref(listed)
        api.llama_sample_top_k(self._at, at, self.TOP_K, 1)
        if self._drawing.top_p < 1.0:
            api.llama_sample_top_p(self._at, at, self._drawing.top_p, 1)
        api.llama_sample_temp(self._at, at, self._drawing.temperature)
        token = api.llama_sample_token(self._at, at)
        scanned, proven = np.full(1, rows.shape[1], np.int32), np.zeros(1, np.bool_)
        return Chosen(np.array([token], np.int32), scanned, proven)


CHAINS = {"llamacpp": Chain, "ik": IkChain}


def contenders(
    context: LlamaContext, decoder: LocalDecoder, drawing: Sampling | None
) -> dict[str, OutputHead | None]:
    """Each by its name; None chooses nothing: the limit of any head."""
    gguf = context.gguf
    own = CHAINS[context.host.engine](context, drawing) if drawing else DenseOutput()
    found: dict[str, OutputHead | None] = {PEER: own, BODY: None}
    for name, spec in heads_of(decoder).items():
        found[name] = DecoderOutput(decoder, spec, gguf.vocab_size, gguf.softcap)
    return found


def heads_of(decoder: LocalDecoder) -> dict[str, ModelSpec]:
    """A request for each of HEADS that the decoder's index has."""
    graded, heads = grades_of(decoder.index), decoder.index.manifest.heads
    return {
        name: {"head": "sketch", "max_error": graded[name]} if name in graded else {"head": name}
        for name in HEADS
        if name in graded or name in heads
    }
