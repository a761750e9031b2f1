"""Two versions on the same contexts: how often they agree, and where they do not."""

from __future__ import annotations

import numpy as np

from logitsieve.api.decoder import Target
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import TopKReply
from logitsieve.decoding import LocalDecoder
from logitsieve.server.console.contexts import MOST_PRODUCTS, kept_contexts
from logitsieve.server.console.words import Facts, word_facts

MOST_SHOWN = 20
MOST_K = 20


def compare(
    one: LocalDecoder,
    other: LocalDecoder,
    k: int,
    target: Target,
    most_products: int = MOST_PRODUCTS,
) -> Facts:
    """Answers of both for the contexts that `one` keeps, or else `other`: as many as take no more
    products of W and contexts.

    InvalidRequest names `other` where the sizes differ, or `model` where neither keeps contexts.
    """
    first, second = one.index, other.index
    if first.dim != second.dim:
        raise InvalidRequest("other", f"D = {second.dim}", f"D = {first.dim}, as the first has")
    least = min(first.vocab_size, second.vocab_size)
    if not 1 <= k <= min(MOST_K, least):
        raise InvalidRequest("k", k, f"1 to {min(MOST_K, least)}")
    hidden = kept_contexts(first, most_products)
    hidden = hidden if len(hidden) else kept_contexts(second, most_products)
    if not len(hidden):
        raise InvalidRequest("model", "two indexes that keep no contexts", "one that keeps some")
    replies = [decoder.topk(hidden, k, **target) for decoder in (one, other)]
    same_best = replies[0].ids[:, 0] == replies[1].ids[:, 0]
    shared = np.array(
        [len(np.intersect1d(a, b)) for a, b in zip(*(r.ids for r in replies), strict=True)]
    )
    differing = np.flatnonzero(shared < k)
    return {
        "one": _facts(one, replies[0]),
        "other": _facts(other, replies[1]),
        "k": k,
        "rows": len(hidden),
        "same_best": float(same_best.mean()),
        "shared": float(shared.mean() / k),
        "same_words": first.vocabulary == second.vocabulary,
        "differing": len(differing),
        "contexts": [_row(one, other, replies, row) for row in differing[:MOST_SHOWN]],
    }


def _facts(decoder: LocalDecoder, reply: TopKReply) -> Facts:
    answer = reply.answer
    return {
        "model": f"{answer.model}@{answer.version}",
        "head": answer.head,
        "knobs": dict(answer.knobs),
        "exact": float(answer.exact.mean()),
        "scanned": float(answer.scanned.mean()),
        "us_per_row": answer.compute_ns / 1000 / len(reply.ids),
        "vocab_size": decoder.index.vocab_size,
    }


def _row(one: LocalDecoder, other: LocalDecoder, replies: list[TopKReply], row: int) -> Facts:
    sides = {}
    for name, decoder, reply in (("one", one, replies[0]), ("other", other, replies[1])):
        words = word_facts(decoder.index, reply.ids[row].tolist())
        logits = reply.logits[row].tolist()
        sides[name] = [word | {"logit": x} for word, x in zip(words, logits, strict=True)]
    return {"context": int(row), **sides}
