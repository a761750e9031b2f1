"""A head's best words and draws for a context, and why a word is, or is not, among them."""

from collections.abc import Iterable
from math import exp
from statistics import median
from typing import Any

import numpy as np

from logitsieve.api.checks import whole
from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import ModelSpec
from logitsieve.api.requests import FILTERS, MOST_STEPS
from logitsieve.api.results import Answer, Float32, Int32
from logitsieve.console.questions import (
    LONGEST,
    Question,
    read_constraints,
    read_numbers,
    read_spec,
    read_whole,
    read_word,
)
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.normalizers import default_normalizer
from logitsieve.heads._base.kernel_head import Head
from logitsieve.index import Index
from logitsieve.index.reader import read_contents
from logitsieve.server.config import ServeConfig

Facts = dict[str, Any]  # of JSON

PROVING = ("sketch", "full")  # normalizers that prove an interval
WIDTH = 0.01  # nats
TIMED = 3  # answers; the median time is shown


def word_facts(index: Index, ids: Iterable[int]) -> list[Facts]:
    words = index.vocabulary
    if words is None:
        return [{"id": int(number), "word": None, "cut": False} for number in ids]
    return [
        {"id": int(number), "word": words[number][:LONGEST], "cut": len(words[number]) > LONGEST}
        for number in ids
    ]


def top(
    decoder: LocalDecoder, hidden_states: Float32, question: Question, config: ServeConfig
) -> Facts:
    """Return the k best words of a context [1, D], with intervals of probabilities."""
    k = read_whole(question, "k", 10, min(config.max_k, decoder.index.vocab_size))
    spec, constraints = read_spec(question), read_constraints(decoder.index, question, config)
    times = [
        decoder.topk(hidden_states, k, constraints=constraints, **spec).answer.compute_ns
        for _ in range(TIMED)
    ]
    normalizer: Any = default_normalizer(decoder.index)
    proving: ModelSpec = {"normalizer": normalizer}
    if normalizer in PROVING:
        proving["width"] = WIDTH
    reply = decoder.topk(hidden_states, k, constraints=constraints, **spec | proving)
    answer = reply.answer
    low, high = _log_z(answer)
    words = word_facts(decoder.index, reply.ids[0].tolist())
    logits, log_probs = reply.logits[0].tolist(), reply.log_probs()[0].tolist()
    for word, logit, log_prob in zip(words, logits, log_probs, strict=True):
        word |= {
            "logit": logit,
            "log_prob": log_prob,
            "probability": exp(log_prob),
            "low": exp(min(logit - high, 0.0)),
            "high": exp(min(logit - low, 0.0)),
        }
    facts = {"log_z_low": low, "log_z_high": high, "us": median(times) / 1000, "words": words}
    return answer_facts(decoder, answer) | facts


def draws(
    decoder: LocalDecoder, hidden_states: Float32, question: Question, config: ServeConfig
) -> Facts:
    """Draw from a context [1, D]; frequent words come first."""
    samples = read_whole(question, "samples", 20, config.max_samples)
    seed = whole("seed", question.get("seed", 0), 0, MOST_STEPS - 1)
    top_k = question.get("top_k", 0)
    reply = decoder.sample(
        hidden_states,
        samples,
        constraints=read_constraints(decoder.index, question, config),
        seeds=[seed],
        top_k=top_k,
        **read_numbers(question, "temperature", *FILTERS),
        **read_spec(question),
    )
    ids, first, counts = np.unique(reply.ids[0], return_index=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    words = word_facts(decoder.index, ids[order].tolist())
    log_probs = reply.log_probs[0][first[order]].tolist()
    for word, count, log_prob in zip(words, counts[order].tolist(), log_probs, strict=True):
        word |= {"count": count, "log_prob": log_prob, "probability": exp(log_prob)}
    facts = answer_facts(decoder, reply.answer)
    return facts | {"us": reply.answer.compute_ns / 1000, "samples": samples, "words": words}


def answer_facts(decoder: LocalDecoder, answer: Answer) -> Facts:
    return {
        "model": f"{answer.model}@{answer.version}",
        "head": answer.head,
        "knobs": dict(answer.knobs),
        "normalizer": answer.normalizer,
        "proven": bool(answer.proven[0]),
        "max_error": float(answer.max_errors[0]),
        "fallback": bool(answer.fallback[0]),
        "scanned": int(answer.scanned[0]),
        "vocab_size": decoder.index.vocab_size,
    }


def _log_z(answer: Answer) -> tuple[float, float]:
    assert answer.log_z is not None, "a normalizer was named"
    low = answer.log_z if answer.log_z_low is None else answer.log_z_low
    high = answer.log_z if answer.log_z_high is None else answer.log_z_high
    return float(low[0]), float(high[0])


def why_not(
    decoder: LocalDecoder, hidden_states: Float32, question: Question, config: ServeConfig
) -> Facts:
    """Return a word's exact logit and rank, and the stages that it passed or failed."""
    index = decoder.index
    word = read_word(index, question.get("word"))
    k = read_whole(question, "k", 10, min(config.max_k, index.vocab_size))
    spec, constraints = read_spec(question), read_constraints(index, question, config)
    reply = decoder.topk(hidden_states, k, constraints=constraints, **spec)
    head = decoder.engine_for(spec, 1, k).answering
    answered, escalated = bool((reply.ids[0] == word).any()), bool(reply.answer.fallback[0])
    computed = answered or _looked_at(head, hidden_states, k, word)
    every: Int32 = np.arange(index.vocab_size, dtype=np.int32)[None]
    logits = index.logits(hidden_states, every)[0]
    logit = float(logits[word])
    ahead = (logits > logit) | ((logits == logit) & (every[0] < word))

    stages: list[Facts] = _constraint_stage(constraints, word)
    if head.name == "screen":
        in_list = computed or escalated or _looked_at(head, hidden_states, k, word)
        stages.append({"stage": "list", "passed": in_list, "escalated": escalated})
    bounded = head.name == "sketch" or escalated
    looked = {"stage": "bounds" if bounded else "logit", "passed": computed, "logit": logit}
    least = float(reply.logits[0, -1])
    stages += [looked, {"stage": "best", "passed": answered, "k": k, "least": least}]
    return {
        **answer_facts(decoder, reply.answer),
        **word_facts(index, [word])[0],
        "logit": logit,
        "rank": 1 + int(ahead.sum()),
        "best": word_facts(index, [int(logits.argmax())])[0] | {"logit": float(logits.max())},
        "k": k,
        "answered": answered,
        "computed": computed,
        "stages": stages,
        "lists": _lists(index, word),
    }


def _looked_at(head: Head, hidden_states: Float32, k: int, word: int) -> bool:
    return bool(np.isin(word, head.candidates(hidden_states, k).ids))


def _constraint_stage(constraints: Constraints | None, word: int) -> list[Facts]:
    if constraints is None:
        return []
    banned: Any = constraints.banned
    allowed: Any = constraints.allowed
    broken = ""
    if banned is not None and word in banned:
        broken = "banned"
    elif allowed is not None and word not in allowed:
        broken = "allowed"
    return [{"stage": "constraint", "passed": not broken, "constraint": broken}]


def _lists(index: Index, word: int) -> Facts | None:
    """Count the screen's lists with the word; InvalidRequest for replaced files."""
    if "screen" not in index.heads:
        return None
    contents = read_contents(index.path)
    if contents.manifest.digest != index.digest:
        got = f"{index.name}@{index.version}, whose files have been replaced since it was loaded"
        raise InvalidRequest("model", got, "a version whose files are those that were loaded")
    screen = contents.parts["screen"]
    return {"clusters": len(screen["offsets"]) - 1, "count": int((screen["ids"] == word).sum())}
