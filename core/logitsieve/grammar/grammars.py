"""Grammars by llguidance: JSON schemas, regular expressions and Lark grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from math import lcm
from threading import Lock
from typing import Any

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Int32
from logitsieve.utils.environment import require

MOST_BYTES = 1 << 16  # of a schema, a pattern or a grammar
DEEPEST = 64  # levels of a schema
KEPT = 32  # compiled grammars
MOST_REMAINDERS = 10_000  # of `multipleOf`; llguidance makes a state for each, all in 0.1 s
# These limit llguidance to 0.1 s for a compilation and 10 ms for a step, on one core.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 100_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_lexer_states": 10_000,
    "max_grammar_size": 50_000,
}
OF_LLGUIDANCE = "x-guidance"  # the key of llguidance's options in a schema
JSON_OPTIONS = {
    # llama.cpp's limit on white space between tokens, without which a text may never end.
    "whitespace_pattern": r"( |\n {0,20})",
    # There is no \\u, since llguidance would not recognize a property's name that is spelled so.
    "json_allowed_escapes": 'nrbtf"\\',
}
SPECIAL = b"\xff"  # precedes names of special tokens; no text has this byte


@dataclass(frozen=True, kw_only=True)
class TokenizerParts:
    pieces: Sequence[bytes]  # by id; for `special` ids their names
    special: frozenset[int]  # ids that plain text cannot spell
    ends: Sequence[int]  # ids that end a text, at least one
    tokenize: Callable[[str], Sequence[int]]  # reads plain text, and adds no first token


class Grammars:
    """Compiles grammars for one tokenizer. Thread-safe. MissingExtra without llguidance."""

    def __init__(self, parts: TokenizerParts) -> None:
        require("grammar", "llguidance")
        import llguidance

        if not parts.ends:
            raise InvalidRequest("grammar", "a model without a token that ends a text", "one")
        wrapper = llguidance.TokenizerWrapper(_Tokens(parts))
        self.vocab_size, self.ends = len(parts.pieces), tuple(parts.ends)
        self._lock, self._kept = Lock(), dict[tuple[str, str], Grammar]()
        self._tokenizer = llguidance.LLTokenizer(
            wrapper, n_vocab=self.vocab_size, eos_token=list(parts.ends)
        )

    def json_schema(
        self, schema: str | bool | Mapping[str, Any], name: str = "json_schema"
    ) -> Grammar:
        """Compile a JSON schema (2020-12 and older); texts may have white space.

        InvalidRequest calls it `name`, also for a keyword that llguidance cannot enforce.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema)
        _check_size(text, name)
        try:
            read = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(name, f"{error!s:.160}", "a JSON schema") from error
        if not isinstance(read, dict | bool):
            raise InvalidRequest(name, f"{text!a:.80}", "a JSON schema: an object, true or false")
        if read is False:
            raise InvalidRequest(name, "false", "a schema that allows a text")
        read = {} if read is True else read
        check_schema(read, name)
        make = partial(self._matchers.grammar_from_json_schema, overrides=JSON_OPTIONS)
        return self._compiled(make, read, name)

    def json_object(self, name: str = "json_schema") -> Grammar:
        return self.json_schema({"type": "object"}, name)

    def regex(self, pattern: str, name: str = "regex") -> Grammar:
        """Compile a regular expression (Rust's syntax, without look-around) for the whole text."""
        _check_size(pattern, name)
        return self._compiled(self._matchers.grammar_from_regex, pattern, name)

    def lark(self, grammar: str, name: str = "grammar") -> Grammar:
        """Compile a Lark grammar as llguidance reads it; the rule `start` is the text."""
        _check_size(grammar, name)
        for found in re.finditer(r"%json\s*(?=[{])", grammar):
            schema: dict[str, Any] = {}
            with suppress(ValueError, RecursionError):  # llguidance will refuse it, with its line
                schema, _ = json.JSONDecoder().raw_decode(grammar, found.end())
            check_schema(schema | {OF_LLGUIDANCE: None}, name)
        return self._compiled(self._matchers.grammar_from_lark, grammar, name)

    @property
    def _matchers(self) -> Any:
        import llguidance

        return llguidance.LLMatcher

    def _compiled(self, make: Callable[[Any], str], value: Any, name: str) -> Grammar:
        try:
            grammar = make(value)
        except ValueError as error:  # such as a number or a character that it cannot read
            raise InvalidRequest(name, f"{error!a:.160}", "one that llguidance reads") from error
        with self._lock:
            if kept := self._kept.get((grammar, name)):
                return kept
        matcher = self._matchers(self._tokenizer, grammar, log_level=0, limits=_limits())
        if matcher.is_error():
            raise InvalidRequest(name, _reason(matcher), "one that llguidance compiles")
        made = Grammar(matcher, self, name)
        made.matcher().mask()  # refuses a grammar that allows no text
        with self._lock:
            self._kept[grammar, name] = made
            if len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]
        return made


@dataclass(frozen=True)
class Grammar:
    """A compiled grammar; InvalidRequest calls it `name`."""

    _compiled: Any
    _of: Grammars
    name: str

    def matcher(self) -> LlMatcher:
        return LlMatcher(self._compiled.deep_copy(), self._of.vocab_size, self._of.ends, self.name)


class LlMatcher:
    """A `Matcher` by llguidance.

    If the grammar forces the next bytes, only the tokenizer's own first token for them is allowed,
    and if it forces the end, only the first of the tokens that end a text.
    """

    def __init__(self, matcher: Any, vocab_size: int, ends: Sequence[int], name: str) -> None:
        self.vocab_size, self._ends, self._name = vocab_size, ends, name
        self._matcher = matcher
        self._forced: list[int] | None = None
        self._mask: Int32 | None = None

    def accept(self, token: int) -> None:
        if token in self._ends and self._matcher.is_stopped() and not self._matcher.is_error():
            return
        allowed = self._matcher.stop_reason().endswith("TooComplex") or self._allows(token)
        self._mask = None
        self._forced = self._forced[1:] or None if self._forced else None
        if not self._matcher.consume_token(token):
            if allowed:
                self._refuse()
            raise InvalidRequest("token", token, f"an id that {self._name} allows")

    def mask(self) -> Int32:
        if self._mask is None:
            words = -(-self.vocab_size // 32)
            if forced := self.forced():
                mask = np.zeros(words, np.int32)
                mask[forced[0] >> 5] = np.uint32(1 << (forced[0] & 31)).view(np.int32)
            else:
                mask = np.frombuffer(self._matcher.compute_bitmask(), np.int32)[:words].copy()
                self._refuse()
            self._mask = mask
        return self._mask

    def forced(self) -> Sequence[int]:
        if self._forced is None:
            if self._matcher.is_stopped():
                self._refuse()
                self._forced = [self._ends[0]]
            else:
                self._forced = self._matcher.compute_ff_tokens()
        return self._forced

    def _allows(self, token: int) -> bool:
        """Return True if a token is known to be allowed; if it fails, a limit was exceeded."""
        if self._mask is None:
            return self._forced is not None and [token] == self._forced[:1]
        return bool(self._mask[token >> 5] >> (token & 31) & 1)

    def _refuse(self) -> None:
        if self._matcher.is_error():
            raise InvalidRequest(self._name, _reason(self._matcher), "a simpler one, of some text")


class _Tokens:
    bos_token_id = None

    def __init__(self, parts: TokenizerParts) -> None:
        self.eos_token_id = parts.ends[0]
        self.tokens = [
            SPECIAL + piece if token in parts.special else piece
            for token, piece in enumerate(parts.pieces)
        ]
        self.special_token_ids = sorted(parts.special)
        self._tokenize = parts.tokenize

    def __call__(self, text: str) -> Sequence[int]:
        if isinstance(text, bytes):
            raise TypeError("a text, not bytes")
        return list(self._tokenize(text)) if text else []


def _check_size(text: str, name: str) -> None:
    if not isinstance(text, str) or not text:
        raise InvalidRequest(name, f"{text!a:.80}", "a text")
    if (size := len(text.encode(errors="replace"))) > MOST_BYTES:
        raise InvalidRequest(name, f"{size} bytes", f"at most {MOST_BYTES} bytes")


def check_schema(schema: Mapping[str, Any], name: str) -> None:
    """InvalidRequest if llguidance might not follow the schema exactly, or take too long."""
    if depth(schema) > DEEPEST:
        raise InvalidRequest(name, "a deeper one", f"a schema of at most {DEEPEST} levels")
    left, remainders = list[Any]([schema]), 1
    while left:
        each = left.pop()
        left += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        if not isinstance(each, dict):
            continue
        if each.get(OF_LLGUIDANCE) is not None:
            raise InvalidRequest(name, OF_LLGUIDANCE, "keywords of JSON schemas")
        least, named = each.get("minProperties"), each.get("required")
        most = 1 + (len(named) if isinstance(named, list) else 0)
        if isinstance(least, int) and least > most:  # llguidance may repeat other names
            allowed = f"at most {most}, one more than the names in required"
            raise InvalidRequest(name, f"minProperties {least}", allowed)
        remainders = lcm(remainders, _remainders(each.get("multipleOf")))
        if remainders > MOST_REMAINDERS:
            allowed = f"numbers with a least common multiple of at most {MOST_REMAINDERS}"
            raise InvalidRequest(name, f"multipleOf {each['multipleOf']}", f"{allowed}, times 10^n")


def _remainders(divisor: Any) -> int:
    """Return a number's decimal digits as an integer; 1 if it is no number."""
    if isinstance(divisor, bool) or not isinstance(divisor, int | float) or not divisor:
        return 1
    digits = Decimal(str(divisor)).normalize().as_tuple().digits
    return max(1, int("".join(map(str, digits))))


def depth(value: Any) -> int:
    """Count the levels of nested lists and objects, without recursion."""
    depth, level = 0, [value] if isinstance(value, dict | list) else []
    while level:
        inner: list[Any] = []
        for each in level:
            inner += each.values() if isinstance(each, dict) else each
        level = [each for each in inner if isinstance(each, dict | list)]
        depth += 1
    return depth


def _reason(matcher: Any) -> str:
    return " ".join(matcher.get_error().removesuffix("<non-verbose/>").split())[:300]


def _limits() -> Any:
    import llguidance

    return llguidance.LLParserLimits(**LIMITS, verbose_errors=False)
