"""Fields of requests, each checked by a line of a table; null counts as absent."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from logitsieve.api.checks import INT32_MAX, whole
from logitsieve.api.errors import InvalidRequest, ModelNotFound, naming
from logitsieve.api.requests import checked_temperature
from logitsieve.client.llamacpp_sequences import GenerationOptions
from logitsieve.completions.checkers import (
    Checker,
    anything,
    boolean,
    checked,
    integer,
    number,
    object_of,
    only,
    text,
)
from logitsieve.completions.structured import STRUCTURED, Structure, structure_of
from logitsieve.completions.tools import Calling, calling, tool_choice, tools
from logitsieve.grammar.grammars import DEEPEST, depth
from logitsieve.llamacpp import LlamaContext, render_chat

MOST_PROMPTS, MOST_CHOICES = 1024, 128
MOST_LOGPROBS = 100
MOST_STOPS, LONGEST_STOP = 64, 256
MOST_BIASED = 1024
DEFAULT_TOKENS = 16
WIDEST_SEED = (1 << 64) - 1
RANDOM = -1  # the seed for other draws each time, as in llama.cpp and vLLM
WIDEST_BIAS = 1000.0
HOTTEST = 100.0


def content(field: str, value: Any) -> str:
    if type(value) is list:
        return "".join(_part(f"{field}[{place}]", part) for place, part in enumerate(value))
    return text(field, value)


def _part(field: str, part: Any) -> str:
    if type(part) is not dict or part.get("type") not in ("text", "refusal"):
        raise InvalidRequest(field, f"{part!a:.80}", 'a part {"type": "text", "text": ...}')
    kind = part["type"]
    table = {"type": text, kind: text, "prompt_cache_breakpoint": anything}
    return text(f"{field}.{kind}", checked(part, table, f"{field}.").get(kind))


def tool_calls(field: str, value: Any) -> list[dict[str, Any]]:
    """Read the calls of an earlier answer; templates take their arguments as objects."""
    if type(value) is not list:
        raise InvalidRequest(field, f"{value!a:.80}", "a list of calls")
    return [_call(f"{field}[{place}]", one) for place, one in enumerate(value)]


def _call(field: str, value: Any) -> dict[str, Any]:
    function = value.get("function") if type(value) is dict else None
    if type(function) is not dict:
        raise InvalidRequest(field, f"{value!a:.80}", "a call with a function")
    table: dict[str, Checker] = {"id": text, "type": text, "function": anything}
    given = checked(value, table, f"{field}.")
    read = checked(function, {"name": text, "arguments": text}, f"{field}.function.")
    within, written = f"{field}.function.arguments", read.get("arguments", "{}")
    try:
        arguments = json.loads(written)
    except (ValueError, RecursionError):
        arguments = None
    if type(arguments) is not dict or depth(arguments) > DEEPEST:
        raise InvalidRequest(within, f"{written!a:.80}", "JSON of an object")
    name = text(f"{field}.function.name", read.get("name"))
    return {**given, "function": {"name": name, "arguments": arguments}}


MESSAGE: dict[str, Checker] = {
    "role": text,
    "content": content,
    "name": text,
    "refusal": text,
    "annotations": anything,
    "tool_calls": tool_calls,
    "tool_call_id": text,
}


def messages(field: str, value: Any) -> list[dict[str, Any]]:
    allowed = 'a list of objects {"role": text, "content": text}'
    if type(value) is not list or not value:
        raise InvalidRequest(field, f"{value!a:.80}", allowed)
    return [_message(f"{field}[{place}]", one, allowed) for place, one in enumerate(value)]


def _message(field: str, value: Any, allowed: str) -> dict[str, Any]:
    given = object_of(field, value, MESSAGE, allowed)
    made: dict[str, Any] = {"role": text(f"{field}.role", given.get("role"))}
    said = given.get("content")
    if said is None and made["role"] == "assistant":
        said = given.get("refusal", "")
    made["content"] = text(f"{field}.content", said)
    more = ("name", "tool_call_id", *["tool_calls"] * bool(given.get("tool_calls")))
    return made | {name: given[name] for name in more if name in given}


def stops(field: str, value: Any) -> tuple[str, ...]:
    texts = [value] if type(value) is str else value
    allowed = f"a text or up to {MOST_STOPS} texts of 1 to {LONGEST_STOP} characters"
    if type(texts) is not list or len(texts) > MOST_STOPS:
        many = f"{len(texts)} texts" if type(texts) is list else f"{value!a:.80}"
        raise InvalidRequest(field, many, allowed)
    for one in texts:
        if type(one) is not str or not 0 < len(one) <= LONGEST_STOP:
            raise InvalidRequest(field, f"{one!a:.80}", allowed)
    return tuple(dict.fromkeys(texts))


def biases(field: str, value: Any) -> dict[int, float]:
    allowed = f"up to {MOST_BIASED} numbers by token id"
    if type(value) is not dict or len(value) > MOST_BIASED:
        raise InvalidRequest(field, f"{value!a:.80}", allowed)
    made = {}
    for token, bias in value.items():
        if not re.fullmatch("0|[1-9][0-9]{0,8}", token):
            raise InvalidRequest(field, f"{token!a:.80}", allowed)
        made[int(token)] = number(-WIDEST_BIAS, WIDEST_BIAS)(f"{field}.{token}", bias)
    return made


def stream_options(field: str, value: Any) -> bool:
    table = dict.fromkeys(("include_usage", "include_obfuscation"), boolean)
    if type(value) is not dict or value.keys() - table:
        raise InvalidRequest(field, f"{value!a:.80}", "an object with include_usage")
    return bool(checked(value, table, f"{field}.").get("include_usage"))


# Fields that change no token; OpenAI's own client sends some of them.
IGNORED = dict.fromkeys(
    (
        *("metadata", "parallel_tool_calls", "prediction", "prompt_cache_key"),
        *("prompt_cache_options", "prompt_cache_retention", "safety_identifier"),
        *("service_tier", "store"),
    ),
    anything,
)
COMMON: dict[str, Checker] = {
    **IGNORED,
    **STRUCTURED,
    "model": text,
    "max_tokens": integer(0, INT32_MAX),
    "temperature": lambda field, value: checked_temperature(value, HOTTEST),
    "top_p": number(0, 1),
    "top_k": integer(-1, INT32_MAX),
    "min_p": number(0, 1),
    "seed": integer(-(1 << 63), WIDEST_SEED),
    "stop": stops,
    "n": integer(1, MOST_CHOICES),
    "presence_penalty": number(-100, 100),
    "frequency_penalty": number(-100, 100),
    "repetition_penalty": number(0.01, 100),
    "logit_bias": biases,
    "stream": boolean,
    "stream_options": stream_options,
    "user": text,
}
UNCHANGED = (
    *("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "stop"),
)
COMPLETION: dict[str, Checker] = {
    **COMMON,
    "prompt": anything,
    "echo": boolean,
    "logprobs": integer(0, MOST_LOGPROBS),
    "best_of": integer(1, MOST_CHOICES),
    "suffix": only(""),
}
CHAT: dict[str, Checker] = {
    **COMMON,
    "messages": messages,
    "max_completion_tokens": integer(1, INT32_MAX),
    "logprobs": boolean,
    "top_logprobs": integer(0, MOST_LOGPROBS),
    "modalities": only(["text"]),
    "verbosity": only("medium"),
    "tools": tools,
    "tool_choice": tool_choice,
    "function_call": only("none"),
}
TOKENIZE: dict[str, Checker] = {
    "model": text,
    "prompt": text,
    "messages": messages,
    "add_special_tokens": boolean,
}
DETOKENIZE: dict[str, Checker] = {"model": text, "tokens": anything}


@dataclass(frozen=True, kw_only=True)
class Asked:
    prompts: list[list[int]]
    texts: list[str | None]
    options: GenerationOptions
    max_tokens: int
    n: int
    echo: bool
    logprobs: int | None
    stream: bool
    include_usage: bool
    chat: bool
    structure: Structure | None
    calls: Calling | None


def completion(body: Mapping[str, Any], context: LlamaContext, name: str) -> Asked:
    given = checked(body, COMPLETION)
    _require_model(given, name)
    if "prompt" not in given:
        raise InvalidRequest("prompt", "nothing", "a text, a list of token ids, or several of them")
    if given.get("best_of", 1) not in (1, given.get("n", 1)):
        raise InvalidRequest("best_of", given["best_of"], "n: it is not supported")
    asked = _prompts(given["prompt"])
    prompts = [tokens(context, one) for one in asked]
    texts = [one if isinstance(one, str) else None for one in asked]
    echo, logprobs = given.get("echo", False), given.get("logprobs")
    return _asked(given, context, prompts, texts, echo, logprobs, DEFAULT_TOKENS)


def chat(body: Mapping[str, Any], context: LlamaContext, name: str) -> Asked:
    given = checked(body, CHAT)
    _require_model(given, name)
    if "messages" not in given:
        raise InvalidRequest("messages", "nothing", "a list of messages")
    if "max_completion_tokens" in given:
        given["max_tokens"] = given["max_completion_tokens"]
    if given.get("top_logprobs") and not given.get("logprobs"):
        raise InvalidRequest("top_logprobs", given["top_logprobs"], "nothing without logprobs")
    listed, calls = given.get("tools"), None
    if given.setdefault("tool_choice", "none" if listed is None else "auto") != "none":
        if listed is None:
            raise InvalidRequest("tools", "nothing", "functions to choose from")
        calls = calling(listed, given["tool_choice"], context.gguf.chat_template or "")
    with naming("messages"):
        text = plain = render_chat(context, given["messages"])
        if calls is not None:
            text = render_chat(context, given["messages"], listed)
    if calls is not None and text == plain:
        got, allowed = f"{len(listed or ())} tools", "none: the model's chat template ignores them"
        raise InvalidRequest("tools", got, allowed)
    with naming("messages"):
        prompt = context.tokenize(text, most=context.longest_text)
    logprobs = given.get("top_logprobs", 0) if given.get("logprobs") else None
    return _asked(given, context, [prompt], [None], None, logprobs, None, calls)


def _asked(
    given: Mapping[str, Any],
    context: LlamaContext,
    prompts: list[list[int]],
    texts: list[str | None],
    echo: bool | None,
    logprobs: int | None,
    default_tokens: int | None,
    calls: Calling | None = None,
) -> Asked:
    vocab_size, most = context.gguf.vocab_size, context.positions // context.sequences
    for token in given.get("logit_bias", {}):
        whole("logit_bias", token, 0, vocab_size - 1)
    longest, seed = max(map(len, prompts)), given.get("seed", RANDOM)
    tokens = given.get("max_tokens", default_tokens)
    if tokens is None:
        tokens = max(0, most - longest)
    if longest + max(tokens, 0 if echo else 1) > most:
        got = f"{longest} tokens and {tokens} to follow"
        allowed = f"at most {most} together, the context of a sequence"
        raise InvalidRequest("messages" if echo is None else "prompt", got, allowed)
    if not tokens and not echo:
        raise InvalidRequest("max_tokens", 0, "1 or more without echo")
    options = GenerationOptions(
        max_tokens=max(tokens, 1),
        temperature=given.get("temperature", 1.0),
        top_k=max(given.get("top_k", 0), 0),
        top_p=given.get("top_p", 1.0) or float(np.nextafter(0.0, 1.0)),
        seeds=None if seed == RANDOM else seed % (WIDEST_SEED + 1),
        penalized=1 << 30,
        penalize_prompt=False,
        **{name: given[name] for name in UNCHANGED if name in given},
    )
    options.drawing(1)  # raises InvalidRequest if no head can draw by these options
    return Asked(
        prompts=prompts,
        texts=texts,
        options=options,
        max_tokens=tokens,
        n=given.get("n", 1),
        echo=bool(echo),
        logprobs=logprobs,
        stream=given.get("stream", False),
        include_usage=given.get("stream_options", False),
        chat=echo is None,
        structure=structure_of(given, None if calls is None else calls.structure),
        calls=calls,
    )


def _require_model(given: Mapping[str, Any], name: str) -> None:
    if given.get("model", name) != name:
        got = f"{given['model']!a:.80}, here is only {name!a:.80}"
        raise ModelNotFound(f"model: got {got}", "model")


def _prompts(value: Any) -> Sequence[str | list[int]]:
    allowed = f"a text, a list of token ids, or up to {MOST_PROMPTS} of either"
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(type(one) is int for one in value):
            return [value]
        texts = all(type(one) is str for one in value)
        ids = all(
            type(one) is list and one and all(type(token) is int for token in one) for one in value
        )
        if (texts or ids) and len(value) <= MOST_PROMPTS:
            return value
    raise InvalidRequest("prompt", f"{value!a:.80}", allowed)


def tokens(
    context: LlamaContext, prompt: str | list[int], *, begin: bool = True, most: int | None = None
) -> list[int]:

    if isinstance(prompt, list):
        return [whole("prompt", token, 0, context.gguf.vocab_size - 1) for token in prompt]
    with naming("prompt"):
        return context.tokenize(prompt, begin=begin, most=most or context.longest_text)
