"""Tokens a second by a JSON schema and of free text: `python -m benchmarks.llamacpp.grammars`.

Each model writes a text of each schema on one thread: our head at the default grade, llama.cpp's
own layer under llguidance's mask, and by its own grammar, which masks all logits if it refuses the
token that they gave. Both heads write free texts of as many tokens, past any end. All take turns
until the minutes are over. Times are the thread's own, from the second token on. A model or an
index that is missing is made before.
"""

import ctypes
import json
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count, product
from pathlib import Path
from time import monotonic, thread_time
from typing import Any

import jsonschema
import numpy as np

from benchmarks import raw
from benchmarks.llamacpp.__main__ import facts, in_turn
from benchmarks.llamacpp.contenders import DRAWN, PEER, Chain
from benchmarks.race.methods import hold_threads
from demo.published import MODELS
from logitsieve.api.mask import unpacked
from logitsieve.api.requests import Sampling
from logitsieve.api.results import Float32
from logitsieve.client.llamacpp import LlamaAttachment, LlamaContext, grammars_of
from logitsieve.client.llamacpp_heads import (
    Chosen,
    DecoderOutput,
    DenseOutput,
    OutputHead,
    RowEdits,
)
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index

MEASURED = ("smollm2-135m", "gemma-3-270m")  # by default
WAYS = {"greedy": None, "top_p 0.95": DRAWN["top_p 0.95"]}
OURS, OWN = "sketch 1e-15", "its grammar"
MASKED = "llguidance's mask"
MINUTES, TOKENS, POSITIONS = 8.0, 160, 1024
PROMPT = "An example of JSON by this schema: {}\n"
_SHORT = {"type": "string", "maxLength": 24}
_SCHEMAS: dict[str, dict[str, Any]] = {
    "person": {
        "name": _SHORT,
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": _SHORT,
        "active": {"type": "boolean"},
    },
    "order": {
        "items": {"type": "array", "items": _SHORT, "minItems": 2, "maxItems": 4},
        "total": {"type": "number", "minimum": 0, "maximum": 1000},
        "status": {"enum": ["open", "paid", "sent"]},
    },
    "answer": {
        "question": {"type": "string", "maxLength": 80},
        "answer": {"type": "string", "maxLength": 160},
        "source": {"anyOf": [{"type": "null"}, _SHORT]},
    },
}
SCHEMAS = {
    name: {
        "type": "object",
        "properties": fields,
        "required": [*fields],
        "additionalProperties": False,
    }
    for name, fields in _SCHEMAS.items()
}
COMMON = r"""ws ::= | " " | "\n" [ ]{0,20}
char ::= [^"\\\x7F\x00-\x1F] | [\\] ["\\bfnrt]"""
_PTR = ctypes.c_void_p


def gbnf(schema: Mapping[str, Any]) -> str:
    """Return the schema as a grammar of llama.cpp, which bounds numbers by their digits alone."""
    listed = [json.dumps(json.dumps(one)) for one in schema.get("enum", ())]
    listed += [gbnf(one) for one in schema.get("anyOf", ())]
    if listed:
        return f"({' | '.join(listed)})"
    if schema["type"] == "object":
        pairs = schema["properties"].items()
        parts = [f'{json.dumps(json.dumps(name))} ":" ws {gbnf(one)}' for name, one in pairs]
        return '"{" ws ' + ' ws "," ws '.join(parts) + ' ws "}"'
    if schema["type"] == "array":
        item, more = gbnf(schema["items"]), (schema["minItems"] - 1, schema["maxItems"] - 1)
        return f'"[" ws {item} (ws "," ws {item}){{{more[0]},{more[1]}}} ws "]"'
    plain = {
        "string": rf'"\"" char{{0,{schema.get("maxLength")}}} "\""',
        "integer": '("0" | [1-9] [0-9]{0,2})',
        "number": '("0" | [1-9] [0-9]{0,2}) ("." [0-9]{1,15})?',
        "boolean": '("true" | "false")',
        "null": '"null"',
    }
    return plain[schema["type"]]


class Token(ctypes.Structure):
    """llama_token_data."""

    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class Tokens(ctypes.Structure):
    """llama_token_data_array."""

    _fields_ = (
        ("data", _PTR),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class Masked(DenseOutput):
    """llama.cpp's own samplers choose among the ids that llguidance's mask allows."""

    def __init__(self, context: LlamaContext, drawing: Sampling | None) -> None:
        self._api, self._at = context._api, context._contexts[0]
        self._chain = drawing and Chain(context, drawing)

    def choose(self, rows: Float32, edits: list[RowEdits], drawing: Sampling | None) -> Chosen:  # type: ignore[override]
        """Set the logits that the row's mask forbids to -inf, in place; then choose."""
        assert edits[0].matcher is not None
        forbidden = ~unpacked(edits[0].matcher.mask()[None], rows.shape[1])[0]
        if self._chain is None:
            rows[0, forbidden] = -np.inf
            return super().choose(rows, [RowEdits()], None)
        address = self._api.llama_get_logits_ith(self._at, -1)
        floats = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        np.ctypeslib.as_array(floats, rows.shape[1:])[forbidden] = -np.inf
        return self._chain.choose(rows, [RowEdits()], drawing)


class OwnGrammar(DenseOutput):
    """llama.cpp's own grammar: the token is sampled first, and again if the grammar refuses it."""

    def __init__(
        self, context: LlamaContext, schema: Mapping[str, Any], drawing: Sampling | None
    ) -> None:
        self._api = api = context._api
        made: dict[str, tuple[Any, ...]] = {
            "llama_sampler_init_grammar": (_PTR, _PTR, ctypes.c_char_p, ctypes.c_char_p),
            "llama_sampler_apply": (None, _PTR, ctypes.POINTER(Tokens)),
            "llama_sampler_accept": (None, _PTR, ctypes.c_int32),
            "llama_sampler_free": (None, _PTR),
        }
        for name, (result, *arguments) in made.items():
            function = getattr(api, name)
            function.restype, function.argtypes = result, arguments
        grammar = f"{COMMON}\nroot ::= {gbnf(schema)}".encode()
        self._grammar = api.llama_sampler_init_grammar(context._vocabulary, grammar, b"root")
        self._chain = drawing and Chain(context, drawing)

    def choose(self, rows: Float32, edits: list[RowEdits], drawing: Sampling | None) -> Chosen:  # type: ignore[override]
        """Sample, check, and sample again under the grammar."""
        own = DenseOutput() if self._chain is None else self._chain
        chosen = own.choose(rows, edits, drawing)
        one = np.zeros(1, Token)
        one["id"] = chosen.ids
        self._apply(self._grammar, one)
        if one["logit"][0] == -np.inf:
            every = np.zeros(rows.shape[1], Token)
            every["id"], every["logit"] = np.arange(rows.shape[1]), rows[0]
            self._apply(self._grammar, every)
            place = int(every["logit"].argmax())
            if self._chain is not None:
                place = self._apply(self._chain._chain, every)
            chosen.ids[:] = every["id"][place]
        self._api.llama_sampler_accept(self._grammar, int(chosen.ids[0]))
        return chosen

    def _apply(self, sampler: Any, tokens: np.ndarray[Any, Any]) -> int:
        listed = Tokens(tokens.ctypes.data, len(tokens), -1, False)
        self._api.llama_sampler_apply(sampler, ctypes.byref(listed))
        return int(listed.selected)

    def close(self) -> None:
        self._api.llama_sampler_free(self._grammar)


def main() -> None:
    parser = raw.parser(__doc__, "llamacpp-grammars.json.gz")
    parser.add_argument("--models", nargs="*", default=list(MEASURED), choices=MODELS)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of all models together")
    options = parser.parse_args()
    results = raw.read(options.out)
    for name, gguf, index, until in in_turn(options.models, options.minutes):
        results[name] = facts(index) | measured(gguf, index, until)
        raw.write(options.out, results)
        print(name, json.dumps(results[name]["ways"]), flush=True)


def measured(gguf: Path, index: Path, until: float) -> dict[str, Any]:
    """Measure a model until a time of `monotonic`, one round or more after one that warms up."""
    hold_threads(1)
    ours: dict[str, dict[str, dict[str, list[float]]]] = {}
    texts = {"texts": 0, "valid": 0, "cut": 0}
    decoder, longest = LocalDecoder(open_index(index, threads=1)), 0.0
    with LlamaContext(gguf, positions=POSITIONS) as context:
        grammars = grammars_of(context)
        for number in count():
            began = monotonic()
            for (way, drawn), schema in product(WAYS.items(), SCHEMAS.values()):
                drawing = Sampling.of(1, 1, drawn | {"seeds": number}) if drawn else None
                head = DecoderOutput(decoder, {"head": "sketch"}, context.gguf.vocab_size, None)
                grammar = grammars.json_schema(schema).matcher
                how: Any = (drawn or {}) | {"seeds": number} if drawn else {}
                write = partial(written, context, PROMPT.format(json.dumps(schema)), how)
                text, found = write(head, grammar=grammar)
                free = {"max_tokens": int(found["tokens"]), "ignore_end": True}
                own = OwnGrammar(context, schema, drawing)
                turns: dict[str, Callable[[], tuple[str, dict[str, float]]]] = {
                    f"{OURS}, free": partial(write, head, **free),
                    f"{PEER}, free": partial(write, _plain(context, drawing), **free),
                    f"{PEER}, {MASKED}": partial(write, Masked(context, drawing), grammar=grammar),
                    f"{PEER}, {OWN}": partial(write, own),
                }
                timed = {f"{OURS}, {MASKED}": found}
                timed |= {who: turn()[1] for who, turn in turns.items()}
                own.close()
                if not number:  # it warms up
                    continue
                judge(text, found, schema, texts)
                for who, one in timed.items():
                    of_way = ours.setdefault(way, {}).setdefault(who, {})
                    for key, value in one.items():
                        of_way.setdefault(key, []).append(value)
            longest = max(longest, monotonic() - began)
            print(gguf.stem, "round", number, f"{monotonic() - began:.0f} s", flush=True)
            if number and monotonic() + longest > until:
                break
    return {"ways": summed(ours), "rounds": number, **texts}


def _plain(context: LlamaContext, drawing: Sampling | None) -> OutputHead:
    return Chain(context, drawing) if drawing else DenseOutput()


def written(
    context: LlamaContext, prompt: str, how: dict[str, Any], head: OutputHead, **more: Any
) -> tuple[str, dict[str, float]]:
    """Write a text; the time of its tokens but the first."""
    with LlamaAttachment(context, head) as attached:
        texts = attached.generate(prompt, **({"max_tokens": TOKENS} | how | more))
        next(texts)
        began = thread_time()
        for _ in texts:
            pass
        seconds = thread_time() - began
    return texts.texts[0], {"tokens": texts.counts.tokens, "seconds": seconds}


def judge(
    text: str, found: Mapping[str, float], schema: Mapping[str, Any], counts: dict[str, int]
) -> None:
    """Count a text of ours, which is of its schema unless it was cut off."""
    counts["texts"] += 1
    if found["tokens"] == TOKENS:
        counts["cut"] += 1
        return
    jsonschema.validate(json.loads(text), schema)
    counts["valid"] += 1


def summed(ours: Mapping[str, Mapping[str, Mapping[str, list[float]]]]) -> dict[str, Any]:
    """Tokens a second over all texts of a way, and the range over single texts."""
    found: dict[str, Any] = {}
    for way, by_name in ours.items():
        for name, one in by_name.items():
            speeds = [(n - 1) / s for n, s in zip(one["tokens"], one["seconds"], strict=True) if s]
            every = sum(n - 1 for n in one["tokens"]) / sum(one["seconds"])
            found.setdefault(way, {})[name] = {
                "tokens_per_s": [every, min(speeds), max(speeds)],
                "median": statistics.median(speeds),
                "tokens": sum(one["tokens"]),
            }
    return found


if __name__ == "__main__":
    main()
