"""Let decoders follow grammars by masks, under which heads take no longer than without."""

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

# The options of draws that callers may give.
DRAWS = tuple(name for name in Sampling._fields if name not in ("samples", "log_probs", "replace"))


class Followed(NamedTuple):
    ids: Int32  # [B]
    scanned: Int32  # [B] exact logits computed; 0 if the grammar forced the id
    proven: Bool  # [B] True if proven to be the masked softmax's


def next_ids(
    decoder: Decoder,
    hidden_states: Float32,
    matchers: Sequence[Matcher],
    constraints: Constraints | None = None,
    **options: Unpack[SampleOptions],
) -> Followed:
    """Return the next id of each row of `hidden_states` [B, D], which its matcher allows.

    The ids are draws of `Decoder.sample` from the masked softmax, with the noise of draws without a
    mask and filters that see allowed ids only; or at temperature 0 the best ids. A forced id needs
    no decoder. InvalidRequest names `grammar` if matcher and constraints together allow no id.
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
    if sets is None:
        return False
    given = [each for each in (sets.banned, sets.allowed) if isinstance(each, IdSets)]
    return sets.mask is not None or any(each.offsets[row] < each.offsets[row + 1] for each in given)


def _mask_of(matcher: Matcher, sets: Constraints | None, row: int) -> Int32:
    """Return the matcher's mask without ids that a row's constraints forbid."""
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
