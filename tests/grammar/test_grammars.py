"""Grammars by llguidance over tokens of bytes."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.grammar import Grammars, Matcher, TokenizerParts, XGrammar, allowed_ids
from logitsieve.grammar.grammars import LIMITS, LlMatcher
from tests.refusals import refused
from tools.grammars import CHECKER, schemas_of

pytest.importorskip("llguidance", reason="needs the extra grammar")
jsonschema = pytest.importorskip("jsonschema")

WORDS = [*b'{"|": |": "|name|", "|true|"}|12|, |\xc3|<end>|<pad>'.split(b"|")]
PIECES = [bytes([byte]) for byte in range(256)] + WORDS
END, PAD = len(PIECES) - 2, len(PIECES) - 1


def tokenize(text: str) -> Sequence[int]:
    """The longest tokens first."""
    raw, ids = text.encode(), []
    while raw:
        known = [i for i, piece in enumerate(PIECES[:END]) if raw.startswith(piece)]
        ids.append(max(known, key=lambda i: len(PIECES[i])))
        raw = raw[len(PIECES[ids[-1]]) :]
    return ids


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    special = frozenset((END, PAD))
    return Grammars(TokenizerParts(pieces=PIECES, special=special, ends=[END], tokenize=tokenize))


def written(matcher: Matcher, seed: int, most: int = 400) -> str:
    """A text of random allowed ids, the likelier the fewer letters are open."""
    rng, ids = np.random.default_rng(seed), list[int]()
    while len(ids) < most:
        allowed = allowed_ids(matcher)
        closing = [i for i in allowed if PIECES[i][:1] in b'"}],0123456789' or i == END]
        chosen = int(rng.choice(closing if closing and rng.random() < 0.7 else allowed))
        if chosen == END:
            return b"".join(PIECES[i] for i in ids).decode()
        matcher.accept(chosen)
        ids.append(chosen)
    raise AssertionError(b"".join(PIECES[i] for i in ids))


TREE = {
    "type": "object",
    "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
    "additionalProperties": False,
}
NAMED = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}
SCHEMAS: list[Any] = [
    True,
    {"type": "object"},
    {**NAMED, "required": ["name"]},
    {"type": "array", "items": {"type": "integer", "minimum": -3, "maximum": 40}, "maxItems": 4},
    {"anyOf": [{"type": "boolean"}, {"enum": ["a", 1, None, {"b": [2]}]}]},
    {"type": "string", "pattern": "^[a-f]{2,4}-[0-9]+$"},
    {"type": "string", "format": "date"},
    {"$defs": {"tree": TREE}, "$ref": "#/$defs/tree"},
    {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 9},
    {"const": {"x": [1, "y"]}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_texts_of_a_schema_validate(grammars: Grammars, schema: Any) -> None:
    grammar = grammars.json_schema(schema)
    for seed in range(5):
        jsonschema.validate(json.loads(written(grammar.matcher(), seed)), schema)


def test_texts_of_random_schemas_validate(grammars: Grammars) -> None:
    for seed, schema in enumerate(schemas_of(np.random.default_rng(1), 80)):
        text = json.loads(written(grammars.json_schema(schema).matcher(), seed, 1500))
        jsonschema.validate(text, schema, jsonschema.Draft202012Validator, format_checker=CHECKER)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({**NAMED, "additionalProperties": {"type": "integer"}}, '{"\\u006eame": 1}'),
        ({"patternProperties": {"^x": {"type": "null"}}, "type": "object"}, '{"\\u0078": 1}'),
        ({"type": "string", "pattern": "^[^x]$"}, '"\\u0078"'),
        ({"type": "object", "additionalProperties": {}, "minProperties": 1}, "{}"),
        ({"allOf": [{"maximum": 3}, {"type": "integer"}], "minimum": 1}, "0"),
    ],
    ids=str,
)
def test_no_text_of_another_schema_is_allowed(grammars: Grammars, schema: Any, text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(text), schema)
    matcher = grammars.json_schema(schema).matcher()
    with refused("token"):
        for byte in text.encode():
            matcher.accept(byte)
        matcher.accept(END)


def test_what_a_matcher_allows_is_its_mask(grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {"name": {"enum": [12, True]}}, "required": ["name"]}
    rng = np.random.default_rng(0)
    for grammar in (grammars.json_schema(schema), grammars.regex("(ab|a[0-9]+é?){2}name")):
        one, made = grammar.matcher(), list[int]()
        for _ in range(60):
            bits = np.isin(range(len(PIECES)), allowed_ids(one))
            other = grammar.matcher()
            for token in made:
                other.accept(token)
            with refused("token"):
                other.accept(int(rng.choice(np.flatnonzero(~bits))))
            if forced := one.forced():
                assert allowed_ids(one).tolist() == [forced[0]]
            assert not bits[PAD]
            chosen = int(rng.choice(np.flatnonzero(bits)))
            one.accept(chosen)
            made.append(chosen)
            if chosen == END:
                break


def test_forced_ids_are_the_tokenizers_own(grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {"name": {"const": True}}, "required": ["name"],
              "additionalProperties": False}  # fmt: skip
    grammar = grammars.regex('\\{"name": true\\}')
    matcher = grammar.matcher()
    assert [*matcher.forced()][:3] == [*tokenize('{"name": true}')][:3]
    for one in tokenize('{"name": true}'):
        matcher.accept(one)
    assert matcher.forced() == [END]
    matcher.accept(END)
    assert written(grammars.json_schema(schema).matcher(), 0).startswith("{")


def test_an_id_that_is_not_allowed_is_refused(grammars: Grammars) -> None:
    matcher = grammars.regex("[ab]+").matcher()
    with refused("token", "regex"):
        matcher.accept(ord("c"))


REFUSED: dict[str, tuple[str, Any]] = {
    "no schema": ("json_schema", '{"type": '),
    "a list": ("json_schema", "[1]"),
    "false": ("json_schema", False),
    "an unknown type": ("json_schema", {"type": "text"}),
    "not": ("json_schema", {"not": {"type": "string"}}),
    "unsatisfiable": ("json_schema", {"type": "integer", "minimum": 3, "maximum": 2}),
    "a reference to nothing": ("json_schema", {"$ref": "#/$defs/none"}),
    "a remote reference": ("json_schema", {"$ref": "https://example.com/schema.json"}),
    "endless": ("json_schema", {"$ref": "#"}),
    "options of llguidance": ("json_schema", {"x-guidance": {"lenient": True}}),
    "hidden options of llguidance": ("json_schema", '{"x\\u002dguidance": {"lenient": true}}'),
    "more names than it counts": ("json_schema", {"type": "object", "minProperties": 2}),
    "one of two that overlap": ("json_schema", {"oneOf": [{"minLength": 2}, {"maxLength": 3}]}),
    "a keyword of dependence": ("json_schema", {"dependentRequired": {"a": ["b"]}}),
    "a remote meaning": ("json_schema", {"unevaluatedProperties": False}),
    "an unknown format": ("json_schema", {"type": "string", "format": "iri"}),
    "a cycle": ("json_schema", {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    "a number of 300 digits": ("json_schema", {"type": "integer", "minimum": 10**300}),
    "half a character": ("json_schema", '{"const": "\\ud800"}'),
    "half a character of a pattern": ("regex", "\ud800"),
    "a state for each remainder": ("json_schema", {"type": "integer", "multipleOf": 99_999_999}),
    "... of both": ("json_schema", {"allOf": [{"multipleOf": 997}, {"multipleOf": 9.91}]}),
    "too large": ("json_schema", {"enum": ["x" * 70_000]}),
    "too deep": ("json_schema", "".join(['{"items": '] * 99) + "{}" + "}" * 99),
    "no pattern": ("regex", "(a"),
    "look-ahead": ("regex", "(?=a)b"),
    "a pattern of nothing": ("regex", "[^\\s\\S]"),
    "a huge pattern": ("regex", "x" * 70_000),
    "no text": ("regex", ""),
    "an unknown rule": ("lark", 'start: "a" | other'),
    "a state for each remainder in Lark": ("lark", 'start: %json {"multipleOf": 99999999}'),
    "no start": ("lark", 'other: "a"'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_grammar_that_cannot_be_followed_names_its_field(grammars: Grammars, case: str) -> None:
    kind, value = REFUSED[case]
    with pytest.raises(InvalidRequest, match=r"^guided: got .+, allowed: .+") as error:
        getattr(grammars, kind)(value, name="guided")
    assert len(str(error.value)) < 600


def test_a_grammar_beyond_the_limits_is_refused(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, "initial_lexer_fuel", 10)
    with refused("guided", "too big"):
        grammars.json_schema({"enum": ["one", "two", "three"]}, "guided")


def test_an_allowed_id_beyond_a_limit_names_the_grammar(grammars: Grammars) -> None:
    """Each of 1,500 names that may come is an item of the parser."""
    names = {f"p{number}": {"type": "null"} for number in range(1500)}
    schema = {"type": "object", "properties": names, "additionalProperties": False}
    matcher = grammars.json_schema(schema, "guided").matcher()
    assert ord("{") in allowed_ids(matcher)
    with refused("guided", "items"):
        matcher.accept(ord("{"))


def test_a_step_beyond_its_limits_is_refused() -> None:
    class Exhausted:
        """A matcher of llguidance that has spent its fuel."""

        def __getattr__(self, name: str) -> Any:
            said: dict[str, Any] = {"is_error": True, "is_stopped": True, "consume_token": False}
            said |= {"stop_reason": "LexerTooComplex", "get_error": "too many states"}
            return lambda *_: said[name]

    matcher = LlMatcher(Exhausted(), len(PIECES), [END], "slow")
    for step in (matcher.forced, matcher.mask, lambda: matcher.accept(1)):
        with refused("slow", "too many states, allowed: a simpler one"):
            step()


def test_tokenizers_without_an_end_are_refused() -> None:
    parts = TokenizerParts(pieces=PIECES, special=frozenset(), ends=[], tokenize=tokenize)
    with refused("grammar", "ends a text"):
        Grammars(parts)


def test_a_matcher_of_xgrammar() -> None:
    """Ids are forced where its mask has one bit."""

    class Compiled:
        def __init__(self) -> None:
            self.taken: list[int] = []

        def fill_next_token_bitmask(self, bits: Any) -> None:
            bits[:] = 0
            bits[0, 2] = -(1 << 31) if self.taken else 6

        def accept_token(self, token: int) -> bool:
            self.taken.append(token)
            return token in (65, 66, 95)

    matcher: Matcher = XGrammar(Compiled(), 100)
    assert allowed_ids(matcher).tolist() == [65, 66]
    assert not matcher.forced()
    matcher.accept(65)
    assert matcher.forced() == [95]
    with refused("token"):
        matcher.accept(3)
