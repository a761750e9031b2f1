"""Follow grammars by masks: heads skip what these forbid, and take no longer than without.

A draw under a mask has the law of the masked softmax, by the noise of the draw without one. An id
that a grammar forces asks no head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack, cast

import numpy as np

from logitsieve.api.constraints import Constraints, IdSets
from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import ModelSpec, SampleOptions, check_keywords
from logitsieve.api.mask import packed
from logitsieve.api.requests import Sampling
from logitsieve.api.results import Bool, Float32, Int32, SampleReply, TopKReply
from logitsieve.grammar.matcher import Matcher

# The options of draws that the caller may give; the others are set here.
DRAWS = tuple(name for name in Sampling._fields if name not in ("samples", "log_probs", "replace"))


class Followed(NamedTuple):
    """The next id of each row, and its cost."""

    ids: Int32  # [B]
    scanned: Int32  # [B] exact logits computed; 0 where the grammar forced the id
    proven: Bool  # [B] proven to be the masked softmax's


def next_ids(
    decoder: Decoder,
    hidden_states: Float32,
    matchers: Sequence[Matcher],
    constraints: Constraints | None = None,
    **options: Unpack[SampleOptions],
) -> Followed:
    """Return an id for each row of `hidden_states` [B, D] that its matcher allows.

    It is the draw of `Decoder.sample` by the same options over the ids that the mask allows, or at
    temperature 0 the best of these. Filters apply to these alone. A forced id asks no decoder.
    InvalidRequest names `grammar` where mask and constraints leave nothing.
    """
    count, given = len(matchers), dict[str, Any](options)
    drawing: Any = {name: given.pop(name) for name in DRAWS if name in given}
    check_keywords(ModelSpec, given)
    how, spec = Sampling.of(count, 1, drawing), cast("ModelSpec", given)
    sets = None if constraints is None else constraints.for_rows(count)
    ids, scanned = np.full(count, -1, np.int32), np.zeros(count, np.int32)
    made = Followed(ids, scanned, np.ones(count, np.bool_))
    for row, matcher in enumerate(matchers):
        if (forced := matcher.forced()) and not _constrained(sets, row):
            ids[row] = forced[0]
    if not (open_ := np.flatnonzero(ids < 0)).size:
        return made
    mask = np.stack([_mask_of(matchers[row], sets, row) for row in open_.tolist()])
    some = (sets or Constraints()).take(open_)
    some = replace(some, banned=None, allowed=None, mask=mask)
    reply: TopKReply | SampleReply
    if how.temperature == 0:
        reply = decoder.topk(hidden_states[open_], 1, constraints=some, **spec)
    else:
        asked: Any = {name: getattr(how, name) for name in DRAWS} | spec | {"log_probs": False}
        asked["seeds"] = how.seeds[open_]
        reply = decoder.sample(hidden_states[open_], constraints=some, **asked)
    ids[open_], scanned[open_] = reply.ids[:, 0], reply.answer.scanned
    made.proven[open_] = reply.answer.proven
    return made


def _constrained(sets: Constraints | None, row: int) -> bool:
    """Return whether constraints may forbid an id of a row."""
    if sets is None:
        return False
    given = [each for each in (sets.banned, sets.allowed) if isinstance(each, IdSets)]
    return sets.mask is not None or any(each.offsets[row] < each.offsets[row + 1] for each in given)


def _mask_of(matcher: Matcher, sets: Constraints | None, row: int) -> Int32:
    """Return the matcher's mask of what a row's constraints leave."""
    words, size = matcher.mask(), matcher.vocab_size
    if sets is not None:
        words = words.copy()
        for field in (sets.banned, sets.allowed):
            if isinstance(field, IdSets):
                bits = np.zeros((1, size), np.bool_)
                bits[0, field.ids[field.offsets[row] : field.offsets[row + 1]]] = True
                words &= ~packed(bits)[0] if field is sets.banned else packed(bits)[0]
        if sets.mask is not None:
            words &= sets.mask[row]
    if not words.any():
        got = f"a text where it and the constraints leave no id in row {row}"
        raise InvalidRequest("grammar", got, "at least one id at each step")
    return words
