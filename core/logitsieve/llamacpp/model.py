"""A model that llama.cpp has loaded from a GGUF file, its tokenizer and chat template."""

import ctypes
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn, Self

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.library import LlamaLibrary, library, messages
from logitsieve.llamacpp.model_file import GgufModel
from logitsieve.utils.environment import require

NO_TOKENIZER = 0  # llama_vocab_type
LONGEST_PIECE = 256

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

        `special` reads names such as `</s>` as tokens.
        """
        if self._api.llama_vocab_type(self._vocabulary) == NO_TOKENIZER:
            raise InvalidRequest("text", "a text", "token ids: the model has no tokenizer")
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


TEMPLATED = "a model whose file has a chat template that takes these messages"
FAILURES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
RENDER_S = 2.0


def chat_prompt(model: LlamaModel, message: str, system: str | None = None) -> str:
    given = {"system": system, "user": message}
    return render_chat(
        model, [{"role": role, "content": text} for role, text in given.items() if text is not None]
    )


def render_chat(model: LlamaModel, messages: Sequence[Mapping[str, str]]) -> str:
    """Return the prompt of messages, each with a `role` and its `content`, up to the answer.

    The template runs in Jinja's sandbox with Hugging Face's functions, for RENDER_S at most.
    InvalidRequest names `chat` without a template, or if it refuses the messages; MissingExtra
    without Jinja.
    """
    require("llamacpp", "jinja2")
    import jinja2
    import jinja2.sandbox

    gguf = model.gguf
    if gguf.chat_template is None:
        raise InvalidRequest("chat", f"{gguf.path}, without a chat template", TEMPLATED)
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": _refuse, "strftime_now": datetime.now().strftime}
    begin = "" if model.begin else gguf.special("bos")  # else it would occur twice
    try:
        template = environment.from_string(gguf.chat_template)
        with _time_limit():
            return template.render(
                messages=messages,
                add_generation_prompt=True,
                bos_token=begin,
                eos_token=gguf.special("eos"),
            )
    except (jinja2.TemplateError, *FAILURES) as error:
        raise InvalidRequest("chat", f"{gguf.path}: {error}", TEMPLATED) from error


@contextmanager
def _time_limit() -> Iterator[None]:
    """ValueError in Python code of this thread that still runs after RENDER_S."""
    before, until = sys.gettrace(), monotonic() + RENDER_S

    def trace(*_: object) -> Any:
        if monotonic() > until:
            raise ValueError(f"it takes more than {RENDER_S:g} s")
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _refuse(reason: str) -> NoReturn:
    raise ValueError(reason)
