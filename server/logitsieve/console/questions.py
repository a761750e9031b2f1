"""Readers of a question's fields; InvalidRequest names one."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from logitsieve.api.checks import whole
from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest, naming
from logitsieve.api.keywords import ModelSpec
from logitsieve.api.results import Float32
from logitsieve.index import Index
from logitsieve.index.calibration import unpack_contexts
from logitsieve.server.config import ServeConfig
from logitsieve.utils.hidden import as_hidden

LONGEST = 200  # characters of a word that are sent
LIKE = 5  # words that an error names

Question = Mapping[str, Any]


def kept_contexts(index: Index) -> Float32:
    """Return the contexts [N, D] in the index; N may be 0."""
    contexts = unpack_contexts(index.measured or {}, index.dim)
    return np.empty((0, index.dim), np.float32) if contexts is None else contexts


def kept_count(index: Index) -> int:
    contexts = (index.calibration or {}).get("contexts")
    return int(contexts["rows"]) if isinstance(contexts, Mapping) else 0


def read_context(index: Index, question: Question) -> Float32:
    """Return [1, D] of `kept`, a number, or of `row`, D numbers."""
    row = question.get("row")
    if row is not None:
        if not isinstance(row, list) or not all(type(x) in (int, float) for x in row):
            raise InvalidRequest("row", f"{row!r:.80}", f"{index.dim} numbers")
        if len(row) != index.dim:
            raise InvalidRequest("row", f"{len(row)} numbers", f"{index.dim}, the hidden size")
        try:
            hidden_states = as_hidden(np.array(row, np.float64), index.dim)
        except OverflowError:  # an integer beyond every float
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
    """Return those of the fields that the question has, as floats."""
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
    """Return the id of a word or an id."""
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
