from collections.abc import Iterable, Mapping
from itertools import islice
from math import exp
from statistics import median
from typing import Any

import numpy as np

from logitsieve.api.checks import whole
from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest, naming
from logitsieve.api.keywords import ModelSpec
from logitsieve.api.requests import FILTERS, MOST_STEPS
from logitsieve.api.results import Answer, Float32, Int32
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.normalizers import default_normalizer
from logitsieve.heads._base.kernel_head import Head
from logitsieve.index import Index
from logitsieve.index.calibration import unpack_contexts
from logitsieve.index.reader import read_contents
from logitsieve.server.config import ServeConfig
from logitsieve.utils.hidden import as_hidden

LONGEST = 200
LIKE = 5

Question = Mapping[str, Any]
Facts = dict[str, Any]
PROVING = ("sketch", "full")  # normalizers that prove an interval
WIDTH = 0.01  # nats
TIMED = 3  # answers; the median time is shown


def kept_contexts(index: Index) -> Float32:
    contexts = unpack_contexts(index.measured or {}, index.dim)
    return np.empty((0, index.dim), np.float32) if contexts is None else contexts


def kept_count(index: Index) -> int:
    contexts = (index.calibration or {}).get("contexts")
    return int(contexts["rows"]) if isinstance(contexts, Mapping) else 0


def read_context(index: Index, question: Question) -> Float32:
    """Return a context [1, D], given by `kept`, its number in the index, or by `row`."""
    row = question.get("row")
    if row is not None:
        if not isinstance(row, list) or not all(type(x) in (int, float) for x in row):
            raise InvalidRequest("row", f"{row!r:.80}", f"{index.dim} numbers")
        if len(row) != index.dim:
            raise InvalidRequest("row", f"{len(row)} numbers", f"{index.dim}, the hidden size")
        try:
            hidden_states = as_hidden(np.array(row, np.float64), index.dim)
        except OverflowError:
            hidden_states = np.full(1, np.inf)
        if not np.isfinite(hidden_states).all():
            raise InvalidRequest("row", "NaN or infinity", "finite float32 numbers")
        return hidden_states
    contexts, number = kept_contexts(index), question.get("kept")
    if not len(contexts):
        raise InvalidRequest("kept", "a number", "`row` instead: the index keeps no contexts")
    if type(number) is not int or not 0 <= number < len(contexts):
        raise InvalidRequest("kept", f"{number!r:.80}", f"a context, 0 to {len(contexts) - 1}")
    return contexts[number : number + 1]


def read_spec(question: Question) -> ModelSpec:
    spec: ModelSpec = {}
    head, knobs = question.get("head", ""), question.get("knobs") or {}
    if not isinstance(head, str):
        raise InvalidRequest("head", f"{head!r:.80}", "the name of a head")
    if not isinstance(knobs, dict) or any(
        type(value) not in (int, float) for value in knobs.values()
    ):
        raise InvalidRequest("knobs", f"{knobs!r:.80}", "a number for each knob's name")
    if head:
        spec["head"] = head
    if knobs:
        spec["knobs"] = knobs
    for name in ("min_precision", "max_error"):
        if question.get(name) is not None:
            spec[name] = question[name]
    return spec


def read_whole(question: Question, field: str, default: int, most: int) -> int:
    return whole(field, question.get(field, default), 1, most)


def read_numbers(question: Question, *fields: str) -> dict[str, Any]:

    return {field: _number(field, question[field]) for field in fields if field in question}


def _number(field: str, value: object) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass
    raise InvalidRequest(field, f"{value!r:.80}", "a number that a float can hold")


def read_constraints(index: Index, question: Question, config: ServeConfig) -> Constraints | None:
    given = {field: question[field] for field in ("banned", "allowed") if question.get(field)}
    for field, values in given.items():
        if not isinstance(values, list):
            raise InvalidRequest(field, f"{values!r:.80}", "a list of words and ids")
    if sum(map(len, given.values())) > config.max_constraint_ids:
        raise InvalidRequest("banned", "too many ids", f"at most {config.max_constraint_ids}")
    sets: Any = {field: read_ids(index, field, values) for field, values in given.items()}
    return Constraints(**sets) if sets else None


def read_word(index: Index, value: object) -> int:

    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < index.vocab_size:
            return value
        raise InvalidRequest("word", f"{value!r:.80}", f"an id, 0 to {index.vocab_size - 1}")
    if not isinstance(value, str) or index.vocabulary is None:
        allowed = "a word or an id" if index.vocabulary else "an id: the index has no vocabulary"
        raise InvalidRequest("word", f"{value!r:.80}", allowed)
    if value in index.word_ids:
        return index.word_ids[value]
    like = (word[:LONGEST] for word in index.vocabulary if value in word)
    allowed = ", ".join(["a word of the vocabulary", *map(repr, islice(like, LIKE))])
    raise InvalidRequest("word", f"{value!r:.80}", allowed)


def read_ids(index: Index, field: str, values: list[object]) -> list[int]:
    with naming(field):
        return sorted({read_word(index, each) for each in values})


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
        stages.append({"stage": "list", "passed": computed or escalated, "escalated": escalated})
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
    """Count the screen's lists with the word. InvalidRequest if files have been replaced."""
    if "screen" not in index.heads:
        return None
    contents = read_contents(index.path)
    if contents.manifest.digest != index.digest:
        got = f"{index.name}@{index.version}, whose files have been replaced since it was loaded"
        raise InvalidRequest("model", got, "a version whose files are those that were loaded")
    screen = contents.parts["screen"]
    return {"clusters": len(screen["offsets"]) - 1, "count": int((screen["ids"] == word).sum())}
