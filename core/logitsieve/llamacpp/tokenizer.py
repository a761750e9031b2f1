"""llama.cpp's tokenizer, called so that no text can end the process.

Most pre-tokenizers of BPE vocabularies use std::regex, which recurses for each character of a match
and takes up to 353 bytes of stack for it. A match may span the whole text, so long texts get a
thread with a stack of their size.
"""

import ctypes
import re
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.aborts import in_thread
from logitsieve.llamacpp.model_file import GgufModel

T = TypeVar("T")

NO_TOKENIZER, SENTENCEPIECE, RWKV = 0, 1, 5  # llama_vocab_type
MOST_TEXT = 1 << 20  # bytes of a text
USUAL_PIECE = 256  # bytes of a buffer at first
DIRECT = 1024  # characters for which every thread has enough stack
STACK_OF_CHARACTER, STACK_BESIDES = 512, 1 << 20  # bytes
PAGE = 128  # characters; their stack is a page of 64 KiB
SPACE = "\u2581"  # SentencePiece's
SPELLED = "characters of the model's vocabulary, which lacks tokens of bytes"
# Texts that some pre-tokenizers must not get. "whitespace" asserts that no word of several
# characters has a space. "superbpe" is quadratic in a number's length: 4,000 digits take a second.
UNSAFE = {
    "whitespace": (re.compile(r"\s | \s"), "single spaces"),
    "superbpe": (re.compile(r"\d{1001}"), "numbers of at most 1000 digits"),
}

_STACKS = threading.Lock()  # the process has one setting for the size of new stacks


class Tokenizer:
    def __init__(self, vocabulary: Any, gguf: GgufModel) -> None:
        self._vocabulary, self._gguf = vocabulary, gguf
        self._octets: set[int] = set()  # single bytes that are tokens

    @cached_property
    def longest(self) -> int:
        """The bytes of the longest token as the file spells it, which may be more than it has."""
        return max((len(word.encode()) for word in self._gguf.vocabulary or ()), default=0)

    @cached_property
    def _unspelled(self) -> set[int]:
        """Bytes without a token; SentencePiece spells unknown characters by tokens of bytes."""
        return {byte for byte in range(256) if f"<0x{byte:02X}>" not in self._words}

    @cached_property
    def _words(self) -> set[str]:
        return set(self._gguf.vocabulary or ())

    def check_special(self, api: Any) -> None:
        """Tokenize "", as llama.cpp asserts that the tokens which it adds to a text exist."""
        if api.llama_vocab_type(self._vocabulary) != NO_TOKENIZER:
            self._read(api, b"", True, True)

    def check(self, text: str, most: int) -> None:
        """Refuse a text of more than `most` bytes, or that UTF-8 cannot hold."""
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequest("text", f"{text!a:.40}", "text that UTF-8 can hold") from error
        if size > most:
            raise InvalidRequest("text", f"a text of {size} bytes", f"at most {most} bytes")

    def tokens(self, api: Any, text: str, begin: bool, special: bool) -> list[int]:
        kind = api.llama_vocab_type(self._vocabulary)
        if kind == NO_TOKENIZER:
            raise InvalidRequest("text", "a text", "token ids: the model has no tokenizer")
        if kind == SENTENCEPIECE and self._unspelled:
            self._refuse_unspelled(text)
        if kind == RWKV:
            self._refuse_unread(api, text)
        if unsafe := UNSAFE.get(self._gguf.pre_tokenizer):
            pattern, allowed = unsafe
            if found := pattern.search(text):
                raise InvalidRequest("text", f"{found[0]!a:.40}", allowed)
        ids = with_stack(len(text), lambda: self._read(api, text.encode(), begin, special))
        if not ids:
            raise InvalidRequest("text", f"{text!a:.40}, of no tokens", "text of one token or more")
        return ids

    def piece(self, api: Any, token: int, special: bool) -> bytes:
        size = USUAL_PIECE
        while True:
            buffer = ctypes.create_string_buffer(size)
            made = api.llama_token_to_piece(self._vocabulary, token, buffer, size, 0, special)
            if made >= 0:
                return buffer.raw[:made]
            size = -made

    def _read(self, api: Any, raw: bytes, begin: bool, special: bool) -> list[int]:
        size = len(raw) + 8
        while True:  # some normalizers lengthen a text
            buffer = (ctypes.c_int32 * size)()
            arguments = raw, len(raw), ctypes.byref(buffer), size, begin, special
            count = api.llama_tokenize(self._vocabulary, *arguments)
            if count >= 0:
                return list(buffer[:count])
            size = -count

    def _refuse_unspelled(self, text: str) -> None:
        """Refuse a text for which llama.cpp would throw a C++ exception through its C API."""
        for character in sorted({SPACE, *text.replace(" ", SPACE)} - self._words):
            if not self._unspelled.isdisjoint(character.encode()):
                raise InvalidRequest("text", f"{character!r}", SPELLED)

    def _refuse_unread(self, api: Any, text: str) -> None:
        """Refuse a text on which llama.cpp would loop forever, for lack of a token for a byte."""
        if not self._octets:
            pieces = (self.piece(api, token, False) for token in range(self._gguf.vocab_size))
            self._octets = {piece[0] for piece in pieces if len(piece) == 1}
        for character in sorted(set(text)):
            if not self._octets.issuperset(character.encode()):
                raise InvalidRequest("text", f"{character!r}", SPELLED)


def with_stack(characters: int, work: Callable[[], T]) -> T:
    """Return `work()`, run by a thread whose stack suffices for a regex over so long a text."""
    if characters <= DIRECT:
        return work()
    thread, made = in_thread(work, "logitsieve-tokenizer")
    size = STACK_BESIDES + -(-characters // PAGE) * PAGE * STACK_OF_CHARACTER
    with _STACKS:
        before = threading.stack_size(size)
        try:
            thread.start()
        except RuntimeError as error:
            got, allowed = f"a text of {characters} characters", "a shorter one: no stack is left"
            raise InvalidRequest("text", got, allowed) from error
        finally:
            threading.stack_size(before)
    return made.result()
