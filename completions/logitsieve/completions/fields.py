"""Fields of requests, each checked by a line of a table; null counts as absent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from logitsieve.api.errors import InvalidRequest, ModelNotFound
from logitsieve.api.requests import INT32_MAX, whole
from logitsieve.client.llamacpp_sequences import GenerationOptions
from logitsieve.llamacpp import LlamaContext, render_chat

MOST_PROMPTS, MOST_CHOICES = 1024, 128
MOST_LOGPROBS = 100  # best ids with each token
MOST_STOPS, LONGEST_STOP = 64, 256  # texts, characters
MOST_BIASED = 1024
DEFAULT_TOKENS = 16  # of a completion, as in OpenAI's interface
WIDEST_SEED = (1 << 64) - 1
WIDEST_BIAS = 1000.0

Checker = Callable[[str, Any], Any]


def number(low: float, high: float) -> Checker:
    def checked(field: str, value: Any) -> float:
        if type(value) not in (int, float) or not low <= value <= high:
            raise InvalidRequest(field, f"{value!r:.80}", f"a number, {low:g} to {high:g}")
        return float(value)

    return checked


def integer(low: int, high: int) -> Checker:
    def checked(field: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise InvalidRequest(field, f"{value!r:.80}", f"a whole number, {low} to {high}")
        return value

    return checked


def boolean(field: str, value: Any) -> bool:
    if type(value) is not bool:
        raise InvalidRequest(field, f"{value!r:.80}", "true or false")
    return value


def text(field: str, value: Any) -> str:
    if type(value) is not str:
        raise InvalidRequest(field, f"{value!r:.80}", "a text")
    return value


def only(allowed: Any) -> Checker:
    """Accept an unsupported field with its neutral value."""

    def checked(field: str, value: Any) -> Any:
        if value != allowed or type(value) is not type(allowed):
            raise InvalidRequest(field, f"{value!r:.80}", f"{allowed!r}: it is not supported")
        return value

    return checked


def stops(field: str, value: Any) -> tuple[str, ...]:
    texts = [value] if type(value) is str else value
    allowed = f"a text or up to {MOST_STOPS} texts of 1 to {LONGEST_STOP} characters"
    if type(texts) is not list or len(texts) > MOST_STOPS:
        many = f"{len(texts)} texts" if type(texts) is list else f"{value!r:.80}"
        raise InvalidRequest(field, many, allowed)
    for one in texts:
        if type(one) is not str or not 0 < len(one) <= LONGEST_STOP:
            raise InvalidRequest(field, f"{one!r:.80}", allowed)
    return tuple(dict.fromkeys(texts))


def biases(field: str, value: Any) -> dict[int, float]:
    allowed = f"up to {MOST_BIASED} numbers by token id"
    if type(value) is not dict or len(value) > MOST_BIASED:
        raise InvalidRequest(field, f"{value!r:.80}", allowed)
    made = {}
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise InvalidRequest(field, f"{token!r:.80}", allowed)
        made[int(token)] = number(-WIDEST_BIAS, WIDEST_BIAS)(f"{field}.{token}", bias)
    return made


def stream_options(field: str, value: Any) -> bool:
    if type(value) is not dict or value.keys() - {"include_usage"}:
        raise InvalidRequest(field, f"{value!r:.80}", "an object with include_usage")
    return boolean(f"{field}.include_usage", value.get("include_usage", False))


def messages(field: str, value: Any) -> list[dict[str, str]]:
    allowed = 'a list of objects {"role": text, "content": text}'
    if type(value) is not list or not value:
        raise InvalidRequest(field, f"{value!r:.80}", allowed)
    made = []
    for place, one in enumerate(value):
        at = f"{field}[{place}]"
        if type(one) is not dict or one.keys() - {"role", "content", "name"}:
            raise InvalidRequest(at, f"{one!r:.80}", allowed)
        content = one.get("content")
        if type(content) is list:
            content = "".join(_part(f"{at}.content[{n}]", part) for n, part in enumerate(content))
        role = text(f"{at}.role", one.get("role"))
        made.append({"role": role, "content": text(f"{at}.content", content)})
    return made


def _part(field: str, part: Any) -> str:
    if type(part) is not dict or part.get("type") != "text" or part.keys() - {"type", "text"}:
        raise InvalidRequest(field, f"{part!r:.80}", 'a part {"type": "text", "text": ...}')
    return text(f"{field}.text", part.get("text"))


def anything(field: str, value: Any) -> Any:
    return value


COMMON: dict[str, Checker] = {
    "model": text,
    "max_tokens": integer(0, INT32_MAX),
    "temperature": number(0, 100),
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
COMPLETION: dict[str, Checker] = {
    **COMMON,
    "prompt": anything,
    "echo": boolean,
    "logprobs": integer(0, MOST_LOGPROBS),
    "best_of": integer(1, MOST_CHOICES),
}
CHAT: dict[str, Checker] = {
    **COMMON,
    "messages": messages,
    "max_completion_tokens": integer(1, INT32_MAX),
    "logprobs": boolean,
    "top_logprobs": integer(0, MOST_LOGPROBS),
    "response_format": only({"type": "text"}),
}
TOKENIZE: dict[str, Checker] = {
    "model": text,
    "prompt": text,
    "messages": messages,
    "add_special_tokens": boolean,
}
DETOKENIZE: dict[str, Checker] = {"model": text, "tokens": anything}


def checked(body: Mapping[str, Any], table: Mapping[str, Checker]) -> dict[str, Any]:
    """Return the given fields, converted; InvalidRequest names an unknown or wrong one."""
    for field in body:
        if field not in table:
            allowed = ", ".join(table)
            raise InvalidRequest(f"{field:.80}", "a field that is not supported", allowed)
    return {field: table[field](field, value) for field, value in body.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A checked request for completions."""

    prompts: list[list[int]]
    texts: list[str | None]  # of the prompts that came as text
    options: GenerationOptions
    max_tokens: int
    n: int
    echo: bool
    logprobs: int | None
    stream: bool
    include_usage: bool
    chat: bool


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
    prompt = tokens(context, render_chat(context, given["messages"]), "messages")
    logprobs = given.get("top_logprobs", 0) if given.get("logprobs") else None
    return _asked(given, context, [prompt], [None], None, logprobs, None)


def _asked(
    given: Mapping[str, Any],
    context: LlamaContext,
    prompts: list[list[int]],
    texts: list[str | None],
    echo: bool | None,
    logprobs: int | None,
    default_tokens: int | None,
) -> Asked:
    vocab_size, most = context.gguf.vocab_size, context.positions // context.sequences
    for token in given.get("logit_bias", {}):
        whole("logit_bias", token, 0, vocab_size - 1)
    longest = max(map(len, prompts))
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
        min_p=given.get("min_p", 0.0),
        seeds=given["seed"] % (WIDEST_SEED + 1) if "seed" in given else None,
        repetition_penalty=given.get("repetition_penalty", 1.0),
        presence_penalty=given.get("presence_penalty", 0.0),
        frequency_penalty=given.get("frequency_penalty", 0.0),
        penalized=1 << 30,
        penalize_prompt=False,
        logit_bias=given.get("logit_bias", {}),
        stop=given.get("stop", ()),
    )
    options.drawing(1)  # InvalidRequest for a temperature between 0 and the coldest
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
    )


def _require_model(given: Mapping[str, Any], name: str) -> None:
    if given.get("model", name) != name:
        raise ModelNotFound(f"model: got {given['model']!r:.80}, here is only {name!r}", "model")


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
    raise InvalidRequest("prompt", f"{value!r:.80}", allowed)


def tokens(
    context: LlamaContext, prompt: str | list[int], field: str = "prompt", *, begin: bool = True
) -> list[int]:
    """Return the ids of a prompt; InvalidRequest names `field`."""
    if isinstance(prompt, list):
        return [whole("prompt", token, 0, context.gguf.vocab_size - 1) for token in prompt]
    try:
        return context.tokenize(prompt, begin=begin)
    except InvalidRequest as error:
        raise InvalidRequest(field, error.got, error.allowed) from error
