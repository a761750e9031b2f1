"""Stochastic beams: texts drawn without replacement from a model's distribution.

Kool, van Hoof, Welling 2019, "Stochastic Beams and Where to Find Them", algorithm 1. The K texts
with the largest log p plus Gumbel noise are a sample without replacement, in that order. A
hypothesis has the largest perturbed value of its texts. The noise of its continuations is drawn
conditionally on their largest being that value, so K hypotheses a step suffice.

Shape letters: S sentences, G of them still searched, B hypotheses of each before a step, K after
it, R rows of hypotheses that have not ended, T tokens chosen so far.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import log
from struct import pack
from typing import Any, NamedTuple, Unpack

import numpy as np

from logitsieve.api.checks import on_host
from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import Decoder
from logitsieve.api.keywords import ModelSpec
from logitsieve.api.results import ArrayLike, Bool, Float32, Float64, Int32, Int64, UInt64
from logitsieve.utils.hidden import as_hidden

Text = tuple[float, float, tuple[int, ...]]  # perturbed and plain log-probability, and tokens


class Drawing(NamedTuple):
    num_beams: int
    eos_ids: tuple[int, ...]
    max_tokens: int
    seeds: UInt64  # [S]


class _Live(NamedTuple):
    groups: Int64  # [G] sentences
    perturbed: Float64  # [G, B], descending; -inf without a hypothesis
    log_probs: Float64  # [G, B]
    lengths: Int64  # [G, B]
    ended: Bool  # [G, B]
    tokens: Int32  # [G, B, T]


def draw_texts(
    decoder: Decoder,
    hidden_states: Float32,
    step: Callable[[Int32, Int32], ArrayLike],
    drawing: Drawing,
    constraints: Constraints | None,
    **spec: Unpack[ModelSpec],
) -> tuple[list[list[Text]], Bool, int]:
    """Return the texts of each sentence in the order drawn, proven [S], and the number of steps.

    `step` gets K rows for each sentence still searched; rows of ended hypotheses are not used.
    """
    sentences, steps = len(hidden_states), 0
    drawn: list[list[Text]] = [[] for _ in range(sentences)]
    proven = np.ones(sentences, np.bool_)
    live = _begun(drawing.seeds)
    while live.groups.size:
        rows = np.flatnonzero(~live.ended)
        reply = decoder.sample(
            hidden_states[rows],
            drawing.num_beams,
            seeds=_seeds(live, drawing.seeds, rows),
            replace=False,
            constraints=constraints,
            **spec,
        )
        answer = reply.answer
        parts = reply.ids, reply.log_probs, reply.perturbed, answer.log_z, answer.proven
        ids, log_probs, perturbed, log_z, sure = map(on_host, parts)
        own = live.log_probs.ravel()[rows, None]
        values = own + (perturbed.astype(np.float64) - log_z[:, None])
        values = given_largest(values, live.perturbed.ravel()[rows])
        proven[live.groups[rows // live.ended.shape[1]][~sure]] = False
        live, parents = _advance(live, drawing, ids, own + log_probs, values)
        steps += 1
        going = ~live.ended.all(axis=1)
        for at in np.flatnonzero(~going).tolist():
            drawn[live.groups[at]] = _texts(live, at)
        live = _Live._make(each[going] for each in live)
        if live.groups.size:
            hidden_states = as_hidden(step(parents[going].ravel(), live.tokens[:, :, -1].ravel()))
    return drawn, proven, steps


def given_largest(values: Float64, largest: Float64) -> Float64:
    """Condition descending Gumbel values [R, K] on each row's maximum being `largest`.

    Appendix B.3: -log(e^-largest - e^-values[0] + e^-values), without cancellation.
    """
    with np.errstate(divide="ignore"):  # the first of a row has log 0
        shifted = np.log(-np.expm1(values - values[:, :1]))
    shifted += largest[:, None] - values
    moved = largest[:, None] - np.maximum(shifted, 0) - np.log1p(np.exp(-np.abs(shifted)))
    return np.asarray(moved)


def _begun(seeds: UInt64) -> _Live:
    """Return empty hypotheses; the largest value of all texts is a Gumbel number from the seed."""
    uniform = [(_hash(seed, (), b"root") >> 12) * 2.0**-52 + 2.0**-53 for seed in seeds.tolist()]
    roots = np.array([[-log(-log(one))] for one in uniform]).reshape(-1, 1)
    zeros, shape = np.zeros(roots.shape), roots.shape
    lengths, ended = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    return _Live(
        np.arange(len(seeds)), roots, zeros, lengths, ended, np.empty((*shape, 0), np.int32)
    )


def _seeds(live: _Live, seeds: UInt64, rows: Int64) -> UInt64:
    beams = live.ended.shape[1]
    of_rows = ((seeds[live.groups[row // beams]], row // beams, row % beams) for row in rows)
    made = [
        _hash(int(seed), live.tokens[group, beam].tolist(), b"text")
        for seed, group, beam in of_rows
    ]
    return np.array(made, np.uint64)


def _hash(seed: int, tokens: Sequence[int], use: bytes) -> int:
    message = pack(f"<Q{len(tokens)}i", seed, *tokens)
    return int.from_bytes(blake2b(message, digest_size=8, person=use).digest(), "little")


def _advance(
    live: _Live, drawing: Drawing, ids: Int32, log_probs: Float64, values: Float64
) -> tuple[_Live, Int32]:
    """Keep the K continuations [R, K] or ended hypotheses with the largest values of each group.

    Returns them and the rows of `live` that they continue, [G, K].
    """
    (groups, beams), count = live.ended.shape, drawing.num_beams
    shape, rows = (groups * beams, count), np.flatnonzero(~live.ended)
    every_value, every_log_prob = np.full(shape, -np.inf), np.full(shape, -np.inf)
    every_token = np.full(shape, drawing.eos_ids[0] if drawing.eos_ids else 0, np.int32)
    every_value[:, 0], every_log_prob[:, 0] = live.perturbed.ravel(), live.log_probs.ravel()
    every_value[rows], every_log_prob[rows] = values, log_probs
    every_token[rows] = np.maximum(ids, 0)

    by_group = groups, beams * count
    best = np.argsort(-every_value.reshape(by_group), axis=1, kind="stable")[:, :count]

    def chosen(each: Any) -> Any:
        return np.take_along_axis(each.reshape(by_group), best, axis=1)

    parents, perturbed, tokens = best // count, chosen(every_value), chosen(every_token)
    was_ended = np.take_along_axis(live.ended, parents, axis=1)
    lengths = np.take_along_axis(live.lengths, parents, axis=1) + ~was_ended
    ended = was_ended | np.isin(tokens, drawing.eos_ids) | (lengths == drawing.max_tokens)
    ended |= perturbed == -np.inf
    before = live.tokens[np.arange(groups)[:, None], parents]
    longer = np.concatenate([before, tokens[:, :, None]], axis=2)
    continued = (np.arange(groups)[:, None] * beams + parents).astype(np.int32)
    made = _Live(live.groups, perturbed, chosen(every_log_prob), lengths, ended, longer)
    return made, continued


def _texts(live: _Live, at: int) -> list[Text]:
    each = zip(
        live.perturbed[at], live.log_probs[at], live.lengths[at], live.tokens[at], strict=True
    )
    return [
        (float(perturbed), float(log_prob), tuple(tokens[:length].tolist()))
        for perturbed, log_prob, length, tokens in each
        if perturbed > -np.inf
    ]
