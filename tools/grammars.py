"""Follow JSON schemas by a published model: texts must validate, and ids be the masked softmax's.

    python -m tools.grammars --model smollm2-135m --index models/smollm2-135m/1 --schemas 500

The schemas have what JSON-Schema-Test-Suite tests and llguidance follows. Ids are judged by the
allowed logits in float64: the largest, or the largest / temperature plus noise. It prints the
counts, and exits with 1 for a wrong id or text.
"""

import argparse
import json
import sys
from typing import Any

import jsonschema
import numpy as np

from demo.published import model_file
from logitsieve.api.results import Float32, Int32
from logitsieve.client.llamacpp import grammars_of
from logitsieve.decoding import LocalDecoder
from logitsieve.grammar import Grammars, allowed_ids, next_ids
from logitsieve.index import open_index
from logitsieve.llamacpp import GgufModel, LlamaContext
from tests.oracle import gumbel_noise

PROMPT = "An example of JSON by this schema: {}\n"
MOST_TOKENS, TEMPERATURE, DEEPEST = 300, 0.8, 2
WORDS = ("name", "age", "city", "tags", "price", "ok", "note", "kind", "items", "date")
ODD = ("naïve", "Größe", "日付", 'a "quoted" one', "back\\slash", "line\nbreak", "a/b~c", "", "😀")
NAMES = (*WORDS, *ODD)
PATTERNS = (
    r"^[a-z]{1,9}-[0-9]{2}$", r"^(\([0-9]{3}\))?[0-9]{3}-[0-9]{4}$", r"^#[0-9a-f]{6}$",
    r"^(red|green|blue)( [a-z]{3,6})?$", r"^[A-Z][a-zé]{2,8}$", r"^[^ \n]{1,8}$", r"^v\d+\.\d+$",
)  # fmt: skip
FORMATS = ("date", "ipv4", "ipv6", "uuid")
CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER
Schema = dict[str, Any]


def value_of(rng: np.random.Generator, depth: int = 0) -> Any:
    """A JSON value of any type."""
    word, number = str(rng.choice(NAMES)), int(rng.integers(-99, 99))
    plain = (None, True, False, number, number / 8, word, word + str(rng.choice(ODD)))
    kind = int(rng.integers(0, len(plain) + 2 * (depth < DEEPEST)))
    if kind < len(plain):
        return plain[kind]
    inner = [value_of(rng, depth + 1) for _ in range(rng.integers(0, 3))]
    return inner if kind == len(plain) else {str(rng.choice(NAMES)): each for each in inner}


def plain_schema(rng: np.random.Generator) -> Schema:
    """A random schema of values that end soon, without schemas inside."""
    low, size = int(rng.integers(-20, 20)), int(rng.integers(1, 12))
    few = int(rng.integers(0, size + 1))
    bounded = {"minimum": low, "maximum": low + size}
    open_ = {"exclusiveMinimum": low, "exclusiveMaximum": low + size}
    kinds: list[Schema] = [
        {"type": "string", "maxLength": size},
        {"type": "string", "minLength": few, "maxLength": size},
        {"type": "string", "pattern": str(rng.choice(PATTERNS))},
        {"type": "string", "format": str(rng.choice(FORMATS))},
        {"type": "integer", **bounded},
        {"type": "integer", "multipleOf": 1 + few, "minimum": 0, "maximum": 9 * size},
        {"type": "number", "multipleOf": 0.25, **open_},
        {"type": "number", "multipleOf": 0.5, **bounded},
        {"type": ["boolean", "null"]},
        {"type": ["integer", "string"], **bounded, "maxLength": size},
        {"const": value_of(rng)},
        {"enum": [value_of(rng) for _ in range(size)]},
        {"allOf": [{"type": "integer", "minimum": low}, {"maximum": low + size}]},
    ]
    return kinds[int(rng.integers(0, len(kinds)))]


def object_schema(rng: np.random.Generator, depth: int) -> Schema:
    """A random schema of objects: names that must, may and may not come."""
    names = [str(name) for name in rng.choice(NAMES, rng.integers(1, 5), replace=False)]
    made: Schema = {
        "type": "object",
        "properties": {name: inner_schema(rng, depth) for name in names},
    }
    others = int(rng.integers(0, 3))
    if others == 1:
        most = len(names) + int(rng.integers(0, 2))
        return made | {
            "required": names,
            "additionalProperties": plain_schema(rng),
            "maxProperties": most,
        }
    required = names[: int(rng.integers(0, len(names) + 1))]
    made |= {"required": required, "additionalProperties": False}
    if others == 2 and required == names:
        made |= {"patternProperties": {"^x[0-9]$": plain_schema(rng)}, "maxProperties": 5}
    return made


def inner_schema(rng: np.random.Generator, depth: int = 0) -> Schema:
    """A random schema, of which some are below `depth` others."""
    kind = int(rng.integers(0, 3 if depth > DEEPEST else 10))
    few = int(rng.integers(0, 3))
    if kind < 3:
        return plain_schema(rng)
    if kind < 6:
        return object_schema(rng, depth + 1)
    if kind == 6:
        items = inner_schema(rng, depth + 1)
        return {"type": "array", "items": items, "minItems": few, "maxItems": few + 1}
    if kind == 7:
        first = [inner_schema(rng, depth + 1) for _ in range(few + 1)]
        least = int(rng.integers(0, few + 2))
        return {"type": "array", "prefixItems": first, "items": False, "minItems": least}
    if kind == 8:
        return {"anyOf": [inner_schema(rng, depth + 1) for _ in range(few + 1)]}
    apart = [{"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 9 + few}]
    return {"oneOf": [*apart, {"type": "string", "maxLength": 5}]}


def schema_of(rng: np.random.Generator) -> Schema:
    """A random schema; one in four refers to a part of itself, one of these below itself."""
    made = inner_schema(rng)
    if rng.random() < 0.75:
        return made
    if rng.random() < 0.25:
        link = {"anyOf": [{"type": "null"}, {"$ref": "#"}]}
        known = {"value": plain_schema(rng), "next": link}
        return {"type": "object", "properties": known, "additionalProperties": False}
    both = {"type": "array", "prefixItems": [{"$ref": "#/$defs/a~1b"}] * 2, "items": False}
    return {"$defs": {"a/b": made}, **both, "minItems": int(rng.integers(0, 3))}


def schemas_of(rng: np.random.Generator, count: int) -> list[Schema]:
    """So many different schemas."""
    found: dict[str, Schema] = {}
    while len(found) < count:
        made = schema_of(rng)
        found[json.dumps(made)] = made
    return [*found.values()]


class Counts:
    """The steps taken, and those that were masked, forced, wrong or close."""

    def __init__(self) -> None:
        self.steps = self.forced = self.judged = self.wrong = self.close = 0
        self.whole = self.invalid = self.cut = 0

    def judge(
        self, decoder: LocalDecoder, hidden: Float32, allowed: Int32, token: int,
        how: dict[str, Any], step: int,
    ) -> None:  # fmt: skip
        """Compare an id with the best of all allowed ones in float64."""
        values = decoder.index.softmax.logits64(hidden, np.array([0, allowed.size]), allowed)
        if how["temperature"]:
            noise = gumbel_noise(how["seeds"], step, 0, allowed.astype(np.int64))
            values = np.asarray(values / how["temperature"] + noise)
        self.judged += 1
        [place] = np.flatnonzero(allowed == token)
        if (short := float(values.max() - values[place])) > 0:
            self.close, self.wrong = self.close + (short < 1e-9), self.wrong + (short >= 1e-9)


def follow(
    context: LlamaContext, decoder: LocalDecoder, grammars: Grammars, schema: Schema,
    how: dict[str, Any], judged: bool, counts: Counts,
) -> None:  # fmt: skip
    """Write a text of a schema, and judge each of its ids if it is to be."""
    matcher = grammars.json_schema(schema).matcher()
    prompt = context.tokenize(PROMPT.format(json.dumps(schema)))
    context.forget()
    hidden, made = context.read(prompt)[-1:], list[int]()
    while len(made) < MOST_TOKENS:
        counts.forced += bool(matcher.forced())
        token = int(next_ids(decoder, hidden, [matcher], **how, step=len(made)).ids[0])
        counts.steps += 1
        if judged:
            counts.judge(decoder, hidden, allowed_ids(matcher), token, how, len(made))
        if context.ends(token):
            break
        matcher.accept(token)
        made.append(token)
        hidden = context.step({0: token})
    text = b"".join(context.piece(token) for token in made).decode(errors="replace")
    if len(made) == MOST_TOKENS:
        counts.cut += 1
        print(f"cut: {text!r} of {json.dumps(schema)}", file=sys.stderr)
        return
    counts.whole += 1
    try:
        jsonschema.validate(
            json.loads(text), schema, jsonschema.Draft202012Validator, format_checker=CHECKER
        )
    except (ValueError, jsonschema.ValidationError) as error:
        counts.invalid += 1
        print(f"invalid: {text!r} of {json.dumps(schema)}: {error!s:.200}", file=sys.stderr)


def main() -> int:
    """Follow the schemas."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--index", required=True)
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--judged", type=int, default=10, help="one schema in so many")
    given = parser.parse_args()
    decoder, counts = LocalDecoder(open_index(given.index)), Counts()
    with LlamaContext(GgufModel(model_file(given.model))) as context:
        context.headless = True
        grammars = grammars_of(context)
        for place, schema in enumerate(schemas_of(np.random.default_rng(0), given.schemas)):
            how = {"temperature": TEMPERATURE * (place % 2), "seeds": place, "head": "sketch"}
            judged = place % given.judged < 2  # greedy and drawn
            follow(context, decoder, grammars, schema, how, judged, counts)
            if place % 20 == 19:
                print(place + 1, vars(counts), file=sys.stderr)
    print(json.dumps(vars(counts)))
    return int(counts.wrong + counts.invalid > 0)


if __name__ == "__main__":
    sys.exit(main())
