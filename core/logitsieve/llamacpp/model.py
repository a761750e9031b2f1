"""A model that llama.cpp has loaded from a GGUF file, and its tokenizer."""

import re
import weakref
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.aborts import Aborted
from logitsieve.llamacpp.chat import ChatPrompt, any_of
from logitsieve.llamacpp.host import Host
from logitsieve.llamacpp.hosts import LLAMACPP, host_of
from logitsieve.llamacpp.model_file import GgufModel
from logitsieve.llamacpp.tokenizer import MOST_TEXT, Tokenizer

SPECIAL = 1 | 8  # llama_token_attr: unknown, control

WITHOUT_RESULT_NORM = (
    "a causal language model whose graph names the tensor before its output layer result_norm"
)


class LlamaModel:
    def __init__(self, gguf: GgufModel | Path | str, engine: str | Host = LLAMACPP) -> None:
        self.gguf = gguf if isinstance(gguf, GgufModel) else GgufModel(gguf)
        self.host: Host = host_of(engine)
        self._open = True
        self._closers: list[weakref.finalize[Any, Any]] = []
        self._model = self._load()
        self._vocabulary = self._api.llama_model_get_vocab(self._model)
        self._tokenizer = Tokenizer(self._vocabulary, self.gguf)
        self._guarded(lambda: self._tokenizer.check_special(self._api))
        words = self._api.llama_vocab_n_tokens(self._vocabulary)
        if words not in (0, self.gguf.vocab_size):
            got = f"{words} tokens for {self.gguf.vocab_size} rows of {self.gguf.matrix.name}"
            raise self._refused(got, "one row for each token")

    @property
    def _running(self) -> Host:
        if not self._open:
            raise InvalidRequest("context", "one that is closed", "an open one")
        return self.host

    @property
    def _api(self) -> Any:
        return self._running.functions

    def close(self) -> None:
        self._open = False
        while self._closers:
            self._closers.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def trained_positions(self) -> int:
        return int(self._api.llama_model_n_ctx_train(self._model))

    @property
    def begin(self) -> list[int]:
        if not self._api.llama_vocab_get_add_bos(self._vocabulary):
            return []
        return [int(self._api.llama_vocab_bos(self._vocabulary))]

    def tokenize(
        self, text: str, *, begin: bool = True, special: bool = True, most: int = MOST_TEXT
    ) -> list[int]:
        """Return the ids of a text of at most `most` bytes; or InvalidRequest.

        `begin` puts the model's first token before them, and `special` reads names such as `</s>`
        as tokens. Both are ignored for a ChatPrompt, which settles them itself.
        """
        self._tokenizer.check(text, most)
        if isinstance(text, ChatPrompt):
            return self._chat_ids(text)
        return self._tokenizer.tokens(self._api, text, begin, special)

    @property
    def longest_token(self) -> int:
        """An upper bound on the bytes of a token."""
        return self._tokenizer.longest

    def _chat_ids(self, prompt: ChatPrompt) -> list[int]:
        ids = []
        for text, special in prompt.parts(self._special_name):
            part = self.tokenize(text, begin=False, special=special) if text else []
            if not special and (made := self._special.keys() & part):
                got = f"{self._special[min(made)]!a:.80}, a special token even as plain text"
                raise InvalidRequest("text", got, "a message without it")
            ids += part
        return ids or self.tokenize("", begin=False)

    @cached_property
    def _special(self) -> dict[int, str]:
        """The tokens that plain text cannot spell, control tokens and the unknown one, by id."""
        attributes, words = self.host.attributes, enumerate(self.gguf.vocabulary or ())
        return {id: one for id, one in words if one and attributes(self._model, id) & SPECIAL}

    @property
    def special_tokens(self) -> frozenset[int]:
        return frozenset(self._special)

    @cached_property
    def _special_name(self) -> re.Pattern[str]:
        return any_of({*self._special.values()})

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return a token's bytes, perhaps a part of a character; `special` spells `</s>` too."""
        return self._tokenizer.piece(self._api, token, special)

    def ends(self, token: int) -> bool:
        return bool(self._api.llama_vocab_is_eog(self._vocabulary, token))

    def _load(self) -> Any:
        if reason := self.host.refusal(self.gguf):
            raise self._refused(reason, f"a model that {self.host.name} is known to run")
        with self.host.messages() as lines:
            model = self._guarded(lambda: self.host.load(self.gguf.path))
        if not model:
            raise self._refused("; ".join(lines), f"a model that {self.host.name} loads")
        self._closing(self._api.llama_model_free, model)
        if self._api.llama_model_has_encoder(model):
            raise self._refused("a model with an encoder", WITHOUT_RESULT_NORM)
        return model

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return self.host.without_abort(work)
        except Aborted as error:
            [(word, count)] = Counter(self.gguf.vocabulary or [""]).most_common(1)
            equal = f" ({count} tokens are {word!a:.40})" if count > 1 else ""
            allowed = f"a model that {self.host.name} loads"
            raise self._refused(f"{self.host.name} aborts, {error}{equal}", allowed) from error

    def _closing(self, function: Any, *arguments: Any) -> None:
        self._closers.append(weakref.finalize(self, function, *arguments))

    def _refused(self, got: str, allowed: str) -> InvalidRequest:
        return InvalidRequest("model", f"{self.gguf.path}: {got}", allowed)
