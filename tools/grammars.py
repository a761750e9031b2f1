"""Follow JSON schemas by a published model: texts must validate, and ids be the masked softmax's.

    python -m tools.grammars --model smollm2-135m --index models/smollm2-135m/1 --schemas 500

Each id is judged by all logits in float64 under the matcher's mask: the largest logit, or the
largest logit / temperature plus noise. It prints the counts, and exits with 1 for a wrong one.
"""

import argparse
import json
import sys
from typing import Any

import jsonschema
import numpy as np

from demo.published import model_file
from logitsieve.client.llamacpp import grammars_of
from logitsieve.decoding import LocalDecoder
from logitsieve.grammar import Grammars, allowed_ids, next_ids
from logitsieve.index import open_index
from logitsieve.llamacpp import GgufModel, LlamaContext
from tests.oracle import gumbel_noise

PROMPT = "An example of JSON by this schema: {}\n"
MOST_TOKENS, TEMPERATURE = 120, 0.8
WORDS = ("name", "age", "city", "tags", "price", "ok", "note", "kind", "items", "date")


def schema_of(rng: np.random.Generator, depth: int = 0) -> dict[str, Any]:
    """A random schema of values that end soon."""
    kind = rng.integers(0, 6 if depth > 2 else 8)
    low, size = int(rng.integers(-20, 20)), int(rng.integers(1, 12))
    plain: list[dict[str, Any]] = [
        {"type": "string", "maxLength": size},
        {"type": "integer", "minimum": low, "maximum": low + size},
        {"type": "boolean"},
        {"enum": [*WORDS[:size], size, None]},
        {"type": "string", "pattern": f"^[a-z]{{1,{size}}}-[0-9]{{2}}$"},
        {"anyOf": [{"type": "null"}, {"type": "number", "minimum": low, "maximum": low + size}]},
    ]
    if kind < len(plain):
        return plain[kind]
    if kind == len(plain):
        few = int(rng.integers(0, 3))
        return {"type": "array", "items": schema_of(rng, depth + 1), "minItems": few, "maxItems": 3}
    names = [str(name) for name in rng.choice(WORDS, rng.integers(1, 4), replace=False)]
    return {
        "type": "object",
        "properties": {name: schema_of(rng, depth + 1) for name in names},
        "required": names[: int(rng.integers(0, len(names) + 1))],
        "additionalProperties": False,
    }


class Counts:
    """The steps taken, and those that were masked, forced, wrong or close."""

    def __init__(self) -> None:
        self.steps = self.forced = self.wrong = self.close = 0
        self.whole = self.invalid = self.cut = 0


def follow(
    context: LlamaContext, decoder: LocalDecoder, grammars: Grammars, schema: dict[str, Any],
    drawn: bool, counts: Counts,
) -> None:  # fmt: skip
    """Write a text of a schema, and judge each of its ids."""
    matcher = grammars.json_schema(schema).matcher()
    prompt = context.tokenize(PROMPT.format(json.dumps(schema)))
    context.forget()
    hidden, made = context.read(prompt)[-1:], list[int]()
    weight = decoder.index.softmax
    every = np.arange(weight.vocab_size, dtype=np.int32)
    ends = np.array([0, every.size], np.int64)
    while len(made) < MOST_TOKENS:
        options: Any = {"temperature": TEMPERATURE if drawn else 0.0, "seeds": 5, "step": len(made)}
        counts.forced += bool(matcher.forced())
        chosen = next_ids(decoder, hidden, [matcher], **options)
        token = int(chosen.ids[0])
        counts.steps += 1
        values = weight.logits64(hidden, ends, every)
        if drawn:
            noise = gumbel_noise(5, len(made), 0, every.astype(np.int64))
            values = np.asarray(values / TEMPERATURE + noise)
        allowed = allowed_ids(matcher)
        best = int(allowed[np.argmax(values[allowed])])
        if best != token:
            near = abs(values[best] - values[token]) < 1e-9
            counts.close, counts.wrong = counts.close + near, counts.wrong + (not near)
        if context.ends(token):
            break
        matcher.accept(token)
        made.append(token)
        hidden = context.step({0: token})
    else:
        counts.cut += 1
        return
    text = b"".join(context.piece(token) for token in made).decode()
    counts.whole += 1
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        counts.invalid += 1
        print(f"invalid: {text!r} of {json.dumps(schema)}", file=sys.stderr)


def main() -> int:
    """Follow the schemas."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--index", required=True)
    parser.add_argument("--schemas", type=int, default=500)
    given = parser.parse_args()
    decoder, rng, counts = LocalDecoder(open_index(given.index)), np.random.default_rng(0), Counts()
    with LlamaContext(GgufModel(model_file(given.model))) as context:
        context.headless = True
        grammars = grammars_of(context)
        for place in range(given.schemas):
            follow(context, decoder, grammars, schema_of(rng), place % 2 == 1, counts)
    print(json.dumps(vars(counts)))
    return int(counts.wrong + counts.invalid > 0)


if __name__ == "__main__":
    sys.exit(main())
