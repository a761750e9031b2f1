"""Why a word is, or is not, among a head's answers for a context."""

from __future__ import annotations

from typing import Any

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Int32
from logitsieve.console.answers import Facts, answer_facts, word_facts
from logitsieve.console.questions import (
    Question,
    read_constraints,
    read_target,
    read_whole,
    read_word,
)
from logitsieve.decoding import LocalDecoder
from logitsieve.heads._base.kernel_head import Head
from logitsieve.heads.certified import GRADES
from logitsieve.index import Index
from logitsieve.index.reader import read_contents
from logitsieve.server.config import ServeConfig


def why_not(
    decoder: LocalDecoder, hidden: Float32, question: Question, config: ServeConfig
) -> Facts:
    """Return a word's exact logit and rank, and the stages that it passed or failed."""
    index = decoder.index
    word = read_word(index, question.get("word"))
    k = read_whole(question, "k", 10, min(config.max_k, index.vocab_size))
    target, constraints = read_target(question), read_constraints(index, question, config)
    reply = decoder.topk(hidden, k, constraints=constraints, **target)
    head = decoder.engine_for(target, 1, k).answering
    answered, escalated = bool((reply.ids[0] == word).any()), bool(reply.answer.fallback[0])
    computed = answered or _looked_at(head, hidden, k, word)
    every: Int32 = np.arange(index.vocab_size, dtype=np.int32)[None]
    logits = index.logits(hidden, every)[0]
    logit = float(logits[word])
    ahead = (logits > logit) | ((logits == logit) & (every[0] < word))

    stages: list[Facts] = _constraint_stage(constraints, word)
    prescreened = bool(head.knobs.get("prescreen"))
    if head.name == "screen":
        lists = head.with_knobs(prescreen=0) if prescreened else head
        in_list = computed or escalated or _looked_at(lists, hidden, k, word)
        stages.append({"stage": "list", "passed": in_list, "escalated": escalated})
    bounded = head.name in ("certified", *GRADES) or prescreened or escalated
    looked = {"stage": "bounds" if bounded else "exact", "passed": computed, "logit": logit}
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


def _looked_at(head: Head, hidden: Float32, k: int, word: int) -> bool:
    return bool(np.isin(word, head.candidates(hidden, k).ids))


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
