"""Beam search for many sentences at once, on any Decoder and the caller's model.

Graves 2012, Sequence Transduction with Recurrent Neural Networks; Wu et al. 2016, Google's Neural
Machine Translation System, equation 14 ("gnmt"). It ends as Hugging Face's `generate` does.

Shape letters: S sentences, G sentences still searched, K beams, P pairs (a hypothesis and its next
token) a sentence, T tokens chosen so far.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import Literal, NamedTuple, Unpack

import numpy as np

from logitsieve.api.checks import INT32_MAX, flag, whole
from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import ModelSpec
from logitsieve.api.requests import MOST_BEAMS, Sampling
from logitsieve.api.results import ArrayLike, BeamStepReply, Bool, Float32, Int32, Int64
from logitsieve.client.stochastic_beams import Drawing, Text, draw_texts
from logitsieve.utils.hidden import as_hidden

ModelStep = Callable[[Int32, Int32], ArrayLike]
"""The caller's model: (parents [R], tokens [R]) -> hidden_states [R, D] for the next tokens.

Row r appends tokens[r] to row parents[r] of the previous call, or of the search's `hidden_states`
in the first call. There are K rows for each sentence still searched.
"""

LengthPenalty = Literal["length", "gnmt"]
EarlyStopping = bool | Literal["never"]

DIVISORS: dict[str, Callable[[int], float]] = {
    "length": lambda length: float(length),
    "gnmt": lambda length: (5 + length) / 6,
}
DEAD = np.float32(-1e9)  # score of an empty place; with log-probabilities added, still below half
MOST_TOKENS = 1 << 20


@dataclass(frozen=True, order=True)
class Hypothesis:
    """A finished continuation of a sentence; better ones compare as greater."""

    score: float  # log_prob after the length penalty
    log_prob: float
    tokens: tuple[int, ...]  # with the final EOS, if there is one


class SearchResult(NamedTuple):
    """The hypotheses of each sentence."""

    hypotheses: list[list[Hypothesis]]  # [S] up to n_best, best first
    proven: Bool  # [S] True if every step was proven
    steps: int  # number of calls of the decoder


def beam_search(
    decoder: Decoder,
    hidden_states: ArrayLike,
    step: ModelStep,
    *,
    num_beams: int,
    eos_ids: Sequence[int],
    max_tokens: int,
    length_penalty: float = 1.0,
    penalty: LengthPenalty = "length",
    early_stopping: EarlyStopping = False,
    n_best: int = 1,
    sample: bool = False,
    seeds: ArrayLike | None = None,
    constraints: Constraints | None = None,
    **spec: Unpack[ModelSpec],
) -> SearchResult:
    """Return the best continuations of S sentences, of at most `max_tokens` tokens each.

    `hidden_states` [S, D] predicts the first tokens; `step` returns those for the next ones. A
    hypothesis ends with one of `eos_ids` or at `max_tokens`. It is ranked by log_prob /
    length ** length_penalty; "gnmt" replaces length by (5 + length) / 6.

    The search of a sentence stops once `num_beams` hypotheses have finished (`early_stopping`
    True), when the best live one would not rank among them now (False), or when it could not even
    at `max_tokens` ("never"). `constraints` hold flat lists of ids.

    `sample` draws `num_beams` different texts instead, at most V, by stochastic beams, and returns
    the first `n_best` in the order drawn. Equal `seeds`, spread as in `Decoder.sample`, draw equal
    texts. `score` is then log_prob plus Gumbel noise.
    """
    search = _Search(
        num_beams=whole("num_beams", num_beams, 1, MOST_BEAMS // 2),
        eos_ids=tuple(eos_ids),
        max_tokens=whole("max_tokens", max_tokens, 1, MOST_TOKENS),
        length_penalty=float(length_penalty),
        penalty=penalty,
        early_stopping=early_stopping,
    )
    n_best = whole("n_best", n_best, 1, num_beams)
    hidden_states = as_hidden(hidden_states)
    if drawing := _drawing(search, len(hidden_states), sample, seeds):
        return _sampled(
            draw_texts(decoder, hidden_states, step, drawing, constraints, **spec), n_best
        )
    sentences, steps = len(hidden_states), 0
    begun = np.zeros((sentences, 1), np.float32), np.empty((sentences, 1, 0), np.int32)
    live = _Live(np.arange(sentences), *begun)
    pools = [_Pool(search) for _ in range(sentences)]
    proven = np.ones(sentences, np.bool_)
    while True:
        reply = decoder.beam_step(
            hidden_states,
            live.scores.ravel(),
            beams_in=live.scores.shape[1],
            beams_out=search.pairs,
            eos_ids=search.eos_ids,
            constraints=constraints,
            **spec,
        )
        reply = _in_arrays(reply)
        steps += 1
        proven[live.groups] &= reply.answer.proven.reshape(len(live.groups), -1).all(axis=1)
        live, parents = _advance(search, live, reply, pools)
        if not live.groups.size:
            best = [sorted(pool.heap, reverse=True)[:n_best] for pool in pools]
            return SearchResult(best, proven, steps)
        hidden_states = step(parents, live.tokens[:, :, -1].ravel())


def _sampled(drawn: tuple[list[list[Text]], Bool, int], n_best: int) -> SearchResult:
    texts, proven, steps = drawn
    made = [[Hypothesis(*one) for one in each[:n_best]] for each in texts]
    return SearchResult(made, proven, steps)


def _drawing(
    search: "_Search", sentences: int, sample: bool, seeds: ArrayLike | None
) -> Drawing | None:
    """Return what `draw_texts` needs, or None; InvalidRequest for arguments that draws ignore."""
    if not flag("sample", sample):
        if seeds is not None:
            raise InvalidRequest("seeds", "some", "none unless sample is True")
        return None
    ranked = {"length_penalty": 1.0, "penalty": "length", "early_stopping": False}
    for name, default in ranked.items():
        if (got := getattr(search, name)) != default:
            raise InvalidRequest(name, repr(got), f"{default!r} where sample is True")
    checked = Sampling.of(sentences, 1, {"seeds": seeds})
    eos_ids = tuple(whole("eos_ids", one, 0, INT32_MAX) for one in search.eos_ids)
    return Drawing(search.num_beams, eos_ids, search.max_tokens, checked.seeds)


def _in_arrays(reply: BeamStepReply) -> BeamStepReply:
    if isinstance(reply.tokens, np.ndarray):
        return reply
    arrays, proven = (each.cpu().numpy() for each in reply[:5]), reply.answer.proven.cpu().numpy()
    return BeamStepReply(*arrays, reply.answer._replace(proven=proven))


@dataclass(frozen=True, kw_only=True)
class _Search:
    num_beams: int
    eos_ids: tuple[int, ...]
    max_tokens: int
    length_penalty: float
    penalty: LengthPenalty
    early_stopping: EarlyStopping

    def __post_init__(self) -> None:
        if self.penalty not in DIVISORS:
            raise InvalidRequest("penalty", repr(self.penalty), ", ".join(DIVISORS))
        if self.early_stopping not in (True, False, "never"):
            raise InvalidRequest("early_stopping", repr(self.early_stopping), "True, False, never")

    @property
    def pairs(self) -> int:
        """P, so that at least K pairs do not end in EOS."""
        return max(2, 1 + len(self.eos_ids)) * self.num_beams

    def rank(self, log_prob: float, length: int) -> float:
        return float(log_prob / DIVISORS[self.penalty](length) ** self.length_penalty)


class _Live(NamedTuple):
    groups: Int64  # [G] sentences
    scores: Float32  # [G, K] one beam at first
    tokens: Int32  # [G, K, T]


class _Pool:
    def __init__(self, search: _Search) -> None:
        self._search = search
        self.heap: list[Hypothesis] = []  # the worst first

    def add(self, log_prob: float, tokens: tuple[int, ...]) -> None:
        finished = Hypothesis(self._search.rank(log_prob, len(tokens)), log_prob, tokens)
        push = heappush if len(self.heap) < self._search.num_beams else heappushpop
        push(self.heap, finished)

    def settled(self, best_live: float, length: int) -> bool:
        """Return True if no live hypothesis of this length, with at most this score, can rank."""
        search = self._search
        if length == search.max_tokens or best_live < DEAD / 2:
            return True
        if len(self.heap) < search.num_beams:
            return False
        if search.early_stopping is True:
            return True
        longest = search.early_stopping == "never" and search.length_penalty > 0
        rank = search.rank(best_live, search.max_tokens if longest else length)
        return rank <= self.heap[0].score


def _advance(
    search: _Search, live: _Live, reply: BeamStepReply, pools: Sequence[_Pool]
) -> tuple[_Live, Int32]:
    """Return the next live hypotheses, and the rows of `live` [G x K] that they continue.

    Pairs that finish go into the pools if they are among the best K.
    """
    beams, length = search.num_beams, live.tokens.shape[2] + 1
    scores = np.where(reply.tokens < 0, DEAD, reply.scores)  # [G, P]
    parents, tokens = np.maximum(reply.parents, 0), np.maximum(reply.tokens, 0)
    ended = reply.finished | (length == search.max_tokens)
    finishing = ended[:, :beams] & (scores[:, :beams] > DEAD / 2)
    for place, pair in np.argwhere(finishing).tolist():
        before = live.tokens[place, parents[place, pair]].tolist()
        chosen = (*before, int(tokens[place, pair]))
        pools[live.groups[place]].add(float(scores[place, pair]), chosen)

    going_on = np.argsort(ended, axis=1, kind="stable")[:, :beams]  # [G, K]
    scores = np.take_along_axis(np.where(ended, DEAD, scores), going_on, axis=1)
    parents = np.take_along_axis(parents, going_on, axis=1)
    tokens = np.take_along_axis(tokens, going_on, axis=1)
    settled = [
        pools[group].settled(float(best), length)
        for group, best in zip(live.groups, scores[:, 0], strict=True)
    ]
    open_ = np.flatnonzero(~np.array(settled, np.bool_))
    before_GKT = live.tokens[open_[:, None], parents[open_]]
    longer_GKT = np.concatenate([before_GKT, tokens[open_][:, :, None]], axis=2)
    rows = open_[:, None] * live.scores.shape[1] + parents[open_]
    going = _Live(live.groups[open_], scores[open_], longer_GKT)
    return going, rows.ravel().astype(np.int32)
