"""A model that llama.cpp has loaded from a GGUF file, and its tokenizer."""

import ctypes
import re
import weakref
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.chat import ChatPrompt, any_of
from logitsieve.llamacpp.library import LlamaLibrary, library, messages
from logitsieve.llamacpp.model_file import GgufModel

NO_TOKENIZER = 0  # llama_vocab_type
LONGEST_PIECE = 256
SPECIAL = 1 | 8  # llama_token_attr: unknown, control

WITHOUT_RESULT_NORM = (
    "a causal language model whose graph names the tensor before its output layer result_norm"
)


class LlamaModel:
    def __init__(self, gguf: GgufModel | Path | str, llama: LlamaLibrary | None = None) -> None:
        self.gguf = gguf if isinstance(gguf, GgufModel) else GgufModel(gguf)
        self._library: LlamaLibrary = llama or library()
        self._open = True
        self._closers: list[weakref.finalize[Any, Any]] = []
        self._model = self._load()
        self._vocabulary = self._api.llama_model_get_vocab(self._model)
        words = self._api.llama_vocab_n_tokens(self._vocabulary)
        if words not in (0, self.gguf.vocab_size):
            got = f"{words} tokens for {self.gguf.vocab_size} rows of {self.gguf.matrix.name}"
            raise self._refused(got, "one row for each token")

    @property
    def _api(self) -> Any:
        if not self._open:
            raise InvalidRequest("context", "one that is closed", "an open one")
        return self._library.functions

    def close(self) -> None:
        self._open = False
        while self._closers:
            self._closers.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def system_info(self) -> str:
        return self._library.system_info

    @property
    def trained_positions(self) -> int:
        return int(self._api.llama_model_n_ctx_train(self._model))

    @property
    def begin(self) -> list[int]:
        if not self._api.llama_vocab_get_add_bos(self._vocabulary):
            return []
        return [int(self._api.llama_vocab_bos(self._vocabulary))]

    def tokenize(self, text: str, *, begin: bool = True, special: bool = True) -> list[int]:
        """Return the ids of a text, after the model's first token if `begin`; or InvalidRequest.

        `special` reads names such as `</s>` as tokens. A ChatPrompt tells both of its parts itself.
        """
        if self._api.llama_vocab_type(self._vocabulary) == NO_TOKENIZER:
            raise InvalidRequest("text", "a text", "token ids: the model has no tokenizer")
        if isinstance(text, ChatPrompt):
            return self._chat_ids(text)
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest("text", f"{text!r:.40}", "text that UTF-8 can hold") from error
        buffer = (ctypes.c_int32 * (len(raw) + 8))()
        arguments = raw, len(raw), ctypes.byref(buffer), len(buffer), begin, special
        count = self._api.llama_tokenize(self._vocabulary, *arguments)
        if count <= 0:
            raise InvalidRequest("text", f"{text!r:.40}, of no tokens", "text of one token or more")
        return list(buffer[:count])

    def _chat_ids(self, prompt: ChatPrompt) -> list[int]:
        ids = []
        for text, special in prompt.parts(self._special_name):
            part = self.tokenize(text, begin=False, special=special) if text else []
            if not special and (made := self._special.keys() & part):
                got = f"{self._special[min(made)]!r:.80}, a special token even as plain text"
                raise InvalidRequest("text", got, "a message without it")
            ids += part
        return ids or self.tokenize("", begin=False)

    @cached_property
    def _special(self) -> dict[int, str]:
        """The names of tokens that only `special` reads."""
        attributes = self._api.llama_vocab_get_attr
        words = enumerate(self.gguf.vocabulary or ())
        return {id: one for id, one in words if one and attributes(self._vocabulary, id) & SPECIAL}

    @cached_property
    def _special_name(self) -> re.Pattern[str]:
        return any_of({*self._special.values()})

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return a token's bytes, maybe a part of a character; `special` spells `</s>` and such."""
        buffer = ctypes.create_string_buffer(LONGEST_PIECE)
        size = self._api.llama_token_to_piece(
            self._vocabulary, token, buffer, len(buffer), 0, special
        )
        return buffer.raw[: max(size, 0)]

    def ends(self, token: int) -> bool:
        return bool(self._api.llama_vocab_is_eog(self._vocabulary, token))

    def _load(self) -> Any:
        parameters = self._api.llama_model_default_params()
        parameters.set("<i", self._library.gpu_layers, 0)
        with messages(self._api) as lines:
            path = str(self.gguf.path).encode()
            model = self._api.llama_model_load_from_file(path, parameters)
        if not model:
            raise self._refused("; ".join(lines), f"a model that {self._library.name} loads")
        self._closing(self._api.llama_model_free, model)
        if self._api.llama_model_has_encoder(model):
            raise self._refused("a model with an encoder", WITHOUT_RESULT_NORM)
        return model

    def _closing(self, function: Any, *arguments: Any) -> None:
        self._closers.append(weakref.finalize(self, function, *arguments))

    def _refused(self, got: str, allowed: str) -> InvalidRequest:
        return InvalidRequest("gguf", f"{self.gguf.path}: {got}", allowed)
