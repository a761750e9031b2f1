"""Answers in OpenAI's form; the field `logitsieve` adds what is proven about them."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from logitsieve.api.errors import InvalidRequest
from logitsieve.completions.decode_loop import Piece, Scored, Task
from logitsieve.completions.fields import Asked
from logitsieve.completions.tools import CallReader
from logitsieve.llamacpp import LlamaContext

SPELLINGS_KEPT = 1 << 16


class Speller:
    def __init__(self, context: LlamaContext) -> None:
        self.raw = lru_cache(maxsize=SPELLINGS_KEPT)(partial(context.piece, special=True))

    def key(self, token: int) -> str:
        """Return a token's text, or its bytes as OpenAI spells them."""
        raw = self.raw(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def text(self, tokens: Sequence[int], most: int | None = None) -> str:
        """Return the text. InvalidRequest if it has more than `most` bytes."""
        pieces, size = [], 0
        for piece in map(self.raw, tokens):
            pieces.append(piece)
            size += len(piece)
            if most is not None and size > most:
                raise InvalidRequest("tokens", f"a text over {most} bytes", "a shorter one")
        return b"".join(pieces).decode(errors="replace")

    def best(self, one: Scored) -> dict[str, float]:
        """Return log-probabilities by text; of tokens with the same text, the largest."""
        best: dict[str, float] = {}
        for token, log_prob in one.best:
            best.setdefault(self.key(token), log_prob)
        if one.log_prob is not None:
            own = self.key(one.id)
            best[own] = max(one.log_prob, best.get(own, one.log_prob))
        return best


@dataclass
class Choice:
    index: int
    task: Task
    speller: Speller
    echoed: str  # the prompt's text, until it has been added
    logprobs: bool
    reader: CallReader | None = None
    finish: str = ""
    text: str = ""
    made: int = 0
    log_z: list[tuple[float, float] | None] = field(default_factory=list)
    tokens: list[Scored] = field(default_factory=list)
    _shown: int = 0
    _offset: int = 0
    _utf8: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def __post_init__(self) -> None:
        if self.echoed:  # it may lack special tokens, which then begin before it
            self._offset = len(self.echoed) - len(self.speller.text(self.task.prompt))

    def add(self, piece: Piece) -> str:

        text = piece.text
        if piece.prompt:
            text, self.echoed = self.echoed, ""
        else:
            self.made += len(piece.tokens)
            if self.reader is not None:
                text = self.reader.shown(text, bool(piece.finish))
        if self.logprobs:
            self.tokens += piece.tokens
            self.log_z += [one.log_z for one in piece.tokens]
        self.text += text
        self.finish = piece.finish or self.finish
        if self.calls:
            self.finish = "tool_calls"
        return text

    @property
    def calls(self) -> list[dict[str, Any]]:

        return [self.reader.call] if self.reader is not None and self.reader.call else []

    def legacy(self) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        tokens, self._shown = self.tokens[self._shown :], len(self.tokens)
        offsets = []
        for one in tokens:
            offsets.append(max(self._offset, 0))
            self._offset += len(self._utf8.decode(self.speller.raw(one.id)))
        return {
            "tokens": [self.speller.key(one.id) for one in tokens],
            "token_logprobs": [one.log_prob for one in tokens],
            "top_logprobs": [
                None if one.log_prob is None else self.speller.best(one) for one in tokens
            ],
            "text_offset": offsets,
        }

    def content(self) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        tokens, self._shown = self.tokens[self._shown :], len(self.tokens)
        return {
            "content": [
                {
                    **self._entry(one.id, one.log_prob),
                    "top_logprobs": [self._entry(*pair) for pair in one.best],
                }
                for one in tokens
            ],
            "refusal": None,
        }

    def truth(self) -> dict[str, Any]:
        task = self.task
        facts: dict[str, Any] = {
            "proven": task.chosen > 0 and task.proven == task.chosen,
            "rows": task.scanned / max(task.chosen, 1),
            "heads": sorted(task.heads),
        }
        if self.logprobs:
            facts["log_z"] = self.log_z
        return facts

    def _entry(self, token: int, log_prob: float | None) -> dict[str, Any]:
        raw = self.speller.raw(token)
        return {"token": raw.decode(errors="replace"), "logprob": log_prob, "bytes": list(raw)}


@dataclass
class CompletionWriter:
    asked: Asked
    id: str
    model: str
    created: int
    index_hash: str
    choices: list[Choice]

    def whole(self, timings: dict[str, float]) -> dict[str, Any]:
        kind = "chat.completion" if self.asked.chat else "text_completion"
        return self._around(kind, list(map(self._whole, self.choices))) | self.facts(timings)

    def chunk(self, choice: Choice, text: str, *, first: bool = False) -> dict[str, Any]:

        finish = choice.finish or None
        one: dict[str, Any] = {"index": choice.index, "finish_reason": finish}
        if self.asked.chat:
            delta: dict[str, Any] = {"role": "assistant", "content": ""} if first else {}
            if text:
                delta["content"] = text
            if choice.calls:
                delta["tool_calls"] = [{"index": 0, **one} for one in choice.calls]
            one |= {"delta": delta, "logprobs": None if first else choice.content()}
            return self._around("chat.completion.chunk", [one])
        return self._around("text_completion", [one | {"text": text, "logprobs": choice.legacy()}])

    def last(self, timings: dict[str, float]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.asked.chat else "text_completion"
        return self._around(kind, []) | self.facts(timings)

    def usage(self) -> dict[str, int]:
        prompt = sum(map(len, self.asked.prompts))
        made = sum(choice.made for choice in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}

    def facts(self, timings: dict[str, float]) -> dict[str, Any]:
        choices = [choice.truth() for choice in self.choices]
        truth = {"index": self.index_hash, "choices": choices, "timings": timings}
        return {"usage": self.usage(), "logitsieve": truth}

    def _whole(self, choice: Choice) -> dict[str, Any]:
        one: dict[str, Any] = {"index": choice.index, "finish_reason": choice.finish}
        if self.asked.chat:
            message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
            if choice.calls:
                message |= {"content": choice.text or None, "tool_calls": choice.calls}
            return one | {"message": message, "logprobs": choice.content()}
        return one | {"text": choice.text, "logprobs": choice.legacy()}

    def _around(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        around = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return around | {"choices": choices}
