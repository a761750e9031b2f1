"""Why a word is, or is not, among the answers of a head for one context.

Shape letters: B contexts, D hidden size, V vocabulary, C clusters, P probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64
from logitsieve.decoding import LocalDecoder
from logitsieve.heads._base.spec import Arrays
from logitsieve.index import Index
from logitsieve.index.contents import read_contents
from logitsieve.server.config import ServeConfig
from logitsieve.server.console.answers import (
    answer_facts,
    read_constraints,
    read_target,
    read_whole,
)
from logitsieve.server.console.word_bounds import word_bounds
from logitsieve.server.console.words import Facts, read_word, word_facts

BY_SKETCH = "certified"
MOST_LISTS = 50  # numbers of lists that are sent
NEAR = 0.05  # of the best cluster's score: a second one so close is a border


def why_not(
    decoder: LocalDecoder, hidden: Float32, question: Mapping[str, Any], config: ServeConfig
) -> Facts:
    """The exact logit and rank of a word, and each stage that it passed or was dropped by."""
    index = decoder.index
    word = read_word(index, question.get("word"))
    k = read_whole(question, "k", 10, min(config.max_k, index.vocab_size))
    target, constraints = read_target(question), read_constraints(decoder, question, config)
    reply = decoder.topk(hidden, k, constraints=constraints, **target)
    head = decoder.engine_for(target, 1, k).answering
    computed = np.isin(word, head.candidates(hidden, k).ids)
    every: Int32 = np.arange(index.vocab_size, dtype=np.int32)[None]
    logits = index.logits(hidden, every)[0]
    logit, parts = float(logits[word]), read_parts(index)
    ahead = (logits > logit) | ((logits == logit) & (every[0] < word))
    least = float(reply.logits[0, -1])
    forbidden = _forbidden(constraints, word)
    stages: list[Facts] = [] if forbidden is None else [forbidden]
    if head.name == "screen":
        stages += _list_stages(parts["screen"], dict(head.knobs), word, hidden[0])
    bounded = head.name == BY_SKETCH or head.knobs.get("prescreen")
    if bounded:
        bias = float(index.softmax.bias[word])
        stages += _bound_stages(parts["sketch"], bias, word, hidden[0], least)
    stages.append({"stage": "exact", "passed": bool(computed), "logit": logit})
    answered = bool((reply.ids[0] == word).any())
    stages.append({"stage": "best", "passed": answered, "k": k, "least": least})
    return {
        **answer_facts(decoder, reply.answer),
        **word_facts(index, [word])[0],
        "logit": logit,
        "rank": 1 + int(ahead.sum()),
        "best": word_facts(index, [int(logits.argmax())])[0] | {"logit": float(logits.max())},
        "k": k,
        "answered": answered,
        "computed": bool(computed),
        "stages": stages,
        "lists": _lists(parts, word),
        "frequency": _frequency(parts, word, index.vocab_size),
    }


def read_parts(index: Index) -> Mapping[str, Arrays]:
    """Mapped arrays by part and name; InvalidRequest where the files are another index by now."""
    contents = read_contents(index.path)
    if contents.manifest.digest != index.digest:
        got = f"{index.name}@{index.version}, whose files have been replaced since it was loaded"
        raise InvalidRequest("model", got, "a version whose files are those that were loaded")
    return contents.parts


class Route(NamedTuple):
    clusters: Int64  # [B, P] best first
    margin: Float64  # [B] by how much of its size the best score exceeds the second
    escalated: Bool  # [B] left to the fallback


def route(screen: Arrays, hidden: Float32, probes: int, escalate: float) -> Route:
    """The clusters of contexts [B, D], in float64: ties aside, those of the kernel."""
    centroids = screen["centroids"].astype(np.float64)
    rows = hidden.astype(np.float64)
    scores = rows @ centroids.T
    probes = min(probes, scores.shape[1])
    order = np.argsort(-scores, axis=1, kind="stable")[:, : max(probes, 2)]
    ranked = np.take_along_axis(scores, order, axis=1)
    lengths = np.linalg.norm(centroids, axis=1) * screen.get("reaches", 1.0)
    reach = np.linalg.norm(rows, axis=1) * lengths[order[:, 0]]
    gap = ranked[:, 0] - ranked[:, -1 if ranked.shape[1] == 1 else 1]
    margin = gap / np.maximum(np.abs(ranked[:, 0]), np.finfo(np.float64).tiny)
    escalated = (ranked[:, 0] < escalate * reach) & (escalate > -1)
    return Route(order[:, :probes], margin, escalated)


def _forbidden(constraints: Constraints | None, word: int) -> Facts | None:
    if constraints is None:
        return None
    banned: Any = constraints.banned
    allowed: Any = constraints.allowed
    if banned is not None and word in banned:
        return {"stage": "constraint", "passed": False, "constraint": "banned"}
    if allowed is not None and word not in allowed:
        return {"stage": "constraint", "passed": False, "constraint": "allowed"}
    return {"stage": "constraint", "passed": True, "constraint": ""}


def _list_stages(
    screen: Arrays, knobs: Mapping[str, float], word: int, hidden: Float32
) -> list[Facts]:
    way = route(screen, hidden[None], int(knobs["probes"]), knobs["escalate"])
    probed = way.clusters[0].tolist()
    offsets, ids = screen["offsets"], screen["ids"]
    listed = [c for c in probed if word in ids[offsets[c] : offsets[c + 1]]]
    escalated = bool(way.escalated[0])
    stage = {"stage": "list", "passed": bool(listed) or escalated, "clusters": probed}
    more = {"listed_in": listed, "escalated": escalated, "margin": float(way.margin[0])}
    return [stage | more | {"near": bool(way.margin[0] < NEAR)}]


def _bound_stages(
    sketch: Arrays, bias: float, word: int, hidden: Float32, least: float
) -> list[Facts]:
    bounds = word_bounds(sketch, bias, word, hidden)
    coarse = {"stage": "coarse", "passed": bounds.coarse >= least, "bound": bounds.coarse}
    fine = {"stage": "fine", "passed": bounds.fine >= least, "bound": bounds.fine}
    stages = [coarse, fine] if coarse["passed"] else [coarse]
    return [stage | {"needed": least} for stage in stages]


def _lists(parts: Mapping[str, Arrays], word: int) -> Facts | None:
    """Numbers of the screen's lists that contain the word."""
    if "screen" not in parts:
        return None
    offsets, ids = parts["screen"]["offsets"], parts["screen"]["ids"]
    places = np.flatnonzero(ids == word)
    clusters = np.searchsorted(offsets, places, side="right") - 1
    return {
        "clusters": len(offsets) - 1,
        "count": len(clusters),
        "first": clusters[:MOST_LISTS].tolist(),
    }


def _frequency(parts: Mapping[str, Arrays], word: int, vocab_size: int) -> Facts | None:
    """The word's place among all, those first that were often among the best in fitting."""
    if "frequency" in parts:
        order = parts["frequency"]["ids"]
    elif "sketch" in parts:
        order = parts["sketch"]["order"]
    else:
        return None
    return {"place": 1 + int(np.flatnonzero(order == word)[0]), "of": vocab_size}
