"""Heads that choose the next tokens of llama.cpp's sequences: a decoder, or llama.cpp's logits.

A softcap keeps the order of logits, so the decoder's best ids stay the best. Their logits are
capped here, before penalties and the temperature, as in llama.cpp.

Shape letters: K ids with known logits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import ModelSpec
from logitsieve.api.requests import Sampling
from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64, SampleReply, TopKReply
from logitsieve.grammar.following import DRAWS, next_ids
from logitsieve.grammar.matcher import Matcher, allowed_bits, allowed_ids
from logitsieve.kernels.sampling.lists import cut_lists, list_sample

ROUNDED = 2.0**-22  # bound on the relative rounding of a logit to float32 and by its cap


@dataclass(frozen=True, kw_only=True)
class RowEdits:
    """Edits of a row's logits, which apply in the order of `Constraints`."""

    banned: Sequence[int] = ()
    allowed: Sequence[int] | None = None
    bias: Mapping[int, float] = field(default_factory=dict)
    repeated: Sequence[int] = ()
    repetition_penalty: float = 1.0
    matcher: Matcher | None = None

    @property
    def valued(self) -> list[int]:
        """The ids with changed, finite logits, in order."""
        repeated = self.repeated if self.repetition_penalty != 1 else ()
        return sorted({*self.bias, *repeated})

    def listed(self) -> Self:
        if self.matcher is None:
            return self
        allowed = allowed_ids(self.matcher)
        if self.allowed is not None:
            allowed = np.intersect1d(allowed, np.asarray(self.allowed, np.int32))
        return replace(self, allowed=allowed.tolist(), matcher=None)

    def applied(self, ids: Int64, logits: Float64) -> Float64:
        if self == UNEDITED:
            return logits
        edited = logits.copy()
        repeated = np.isin(ids, list(self.repeated))
        by = np.where(edited > 0, 1 / self.repetition_penalty, self.repetition_penalty)
        edited = np.where(repeated, edited * by, edited)
        for one, bias in self.bias.items():
            edited[ids == one] += bias
        edited[np.isin(ids, list(self.banned))] = -np.inf
        if self.allowed is not None:
            edited[~np.isin(ids, list(self.allowed))] = -np.inf
        if self.matcher is not None:
            edited[~allowed_bits(self.matcher)[ids]] = -np.inf
        return edited


UNEDITED = RowEdits()


class Chosen(NamedTuple):
    ids: Int32  # [B]
    scanned: Int32  # [B] exact logits computed
    proven: Bool  # [B]


class Scores(NamedTuple):
    """Log-probabilities under the full softmax, before edits and temperature."""

    log_probs: Float32  # [B] of the given ids
    ids: Int32  # [B, K] the best ids, in order
    best: Float32  # [B, K] their log-probabilities, with equal bits for equal ids
    low: Float32  # [B] proven bounds of log Z, or NaN
    high: Float32  # [B]
    proven: Bool  # [B]
    scanned: Int32  # [B] logits computed, without those for log Z


class OutputHead(Protocol):
    """Chooses tokens from a LlamaContext's rows: hidden states if `headless`, else logits."""

    headless: bool

    def choose(self, rows: Float32, edits: Sequence[RowEdits], drawing: Sampling | None) -> Chosen:
        """Return the best id of each row, or its draw if there is a `drawing`."""

    def scores(self, rows: Float32, token_ids: Sequence[int], k: int) -> Scores:
        """Return the log-probabilities of an id and of the `k` best ids of each row."""


class HeadSlot(Protocol):
    """Holds the head for the next token, which may be replaced at any time."""

    head: OutputHead


class DenseOutput:
    headless = False

    def choose(self, rows: Float32, edits: Sequence[RowEdits], drawing: Sampling | None) -> Chosen:
        if drawing is None and all(edit == UNEDITED for edit in edits):
            chosen = rows.argmax(axis=1).tolist()
        else:
            every = np.arange(rows.shape[1])
            chosen = [
                pick(every, edit.applied(every, row.astype(np.float64)), drawing, place)
                for place, (row, edit) in enumerate(zip(rows, edits, strict=True))
            ]
        scanned = np.full(len(rows), rows.shape[1], np.int32)
        return Chosen(np.array(chosen, np.int32), scanned, np.zeros(len(rows), np.bool_))

    def scores(self, rows: Float32, token_ids: Sequence[int], k: int) -> Scores:
        count, vocab_size = rows.shape
        ids = np.empty((count, k), np.int32)
        log_probs = np.empty((count, 1 + k), np.float32)
        for place, (row, token_id) in enumerate(zip(rows, token_ids, strict=True)):
            least = np.partition(row, vocab_size - k)[vocab_size - k] if k else np.inf
            best = np.flatnonzero(row >= least)  # may be more than k, because of ties
            ids[place] = best[np.argsort(-row[best], kind="stable")[:k]]
            top = row.max().astype(np.float64)
            log_z = top + np.log(np.exp(row - top).sum())
            log_probs[place] = row[[token_id, *ids[place]]] - log_z
        full = np.full(count, vocab_size, np.int32)
        none, proven = np.full(count, np.nan, np.float32), np.zeros(count, np.bool_)
        return Scores(log_probs[:, 0], ids, log_probs[:, 1:], none, none, proven, full)


class DecoderOutput:
    headless = True

    def __init__(
        self, decoder: Decoder, spec: ModelSpec, vocab_size: int, softcap: float | None
    ) -> None:
        self._decoder, self._spec = decoder, spec
        self._vocab_size, self._softcap = vocab_size, softcap

    def choose(self, rows: Float32, edits: Sequence[RowEdits], drawing: Sampling | None) -> Chosen:
        if self._softcap is not None and (drawing or any(edit.valued for edit in edits)):
            listed = [edit.listed() for edit in edits]
            return self._softcapped(rows, listed, drawing, self._softcap)
        constraints = as_constraints(edits)
        matchers = [edit.matcher for edit in edits if edit.matcher is not None]
        if matchers:
            asked: Any = {"temperature": 0.0} if drawing is None else drawing._asdict()
            asked = {name: asked[name] for name in DRAWS if name in asked}
            made = next_ids(self._decoder, rows, matchers, constraints, **asked, **self._spec)
            return Chosen(made.ids, made.scanned, made.proven)
        reply: TopKReply | SampleReply
        if drawing is None:
            reply = self._decoder.topk(rows, 1, constraints=constraints, **self._spec)
        else:
            options: dict[str, Any] = {**drawing._asdict(), **self._spec, "log_probs": False}
            reply = self._decoder.sample(rows, constraints=constraints, **options)
        return Chosen(reply.ids[:, 0], reply.answer.scanned, reply.answer.proven)

    def scores(self, rows: Float32, token_ids: Sequence[int], k: int) -> Scores:
        """Score by the decoder; InvalidRequest (`logprobs`) if the model has a softcap."""
        if self._softcap is not None:
            allowed = "a model that does not bend its logits, or llama.cpp's own head"
            raise InvalidRequest("logprobs", True, allowed)
        ids = np.empty((len(rows), 0), np.int32)
        scanned = np.ones(len(rows), np.int32)
        if k:
            top = self._decoder.topk(rows, k, **self._spec)
            ids, scanned = top.ids, scanned + top.answer.scanned
        every = np.concatenate([np.array(token_ids, np.int32)[:, None], ids], axis=1)
        spec: ModelSpec = {**self._spec, "normalizer": "full"}
        log_probs, answer = self._decoder.score(rows, every, **spec)
        low, high = (
            np.full(len(rows), np.nan, np.float32) if bound is None else bound
            for bound in (answer.log_z_low, answer.log_z_high)
        )
        return Scores(log_probs[:, 0], ids, log_probs[:, 1:], low, high, answer.proven, scanned)

    def _softcapped(
        self, rows: Float32, edits: Sequence[RowEdits], drawing: Sampling | None, softcap: float
    ) -> Chosen:
        """Choose among the best unedited ids and all edited ones.

        The decoder rounds logits to float32. So no draw is proven, and a best id is proven only if
        its lead over the second exceeds the rounding.
        """
        if drawing is not None and not drawing.top_k:
            allowed = "1 or more where the model caps its logits (final_logit_softcapping)"
            raise InvalidRequest("top_k", 0, allowed)
        k = 1 if drawing is None else drawing.top_k
        if as_constraints(edits) is None:
            tops = [self._decoder.topk(rows, min(k, self._vocab_size), **self._spec)]
        else:  # rows have different numbers of ids
            each = [rows[place : place + 1] for place in range(len(rows))]
            tops = [self._known(row, edit, k) for row, edit in zip(each, edits, strict=True)]
        ids = [row.astype(np.int64) for top in tops for row in top.ids]
        rounded = [row.astype(np.float64) for top in tops for row in top.logits]
        capped = [softcap * np.tanh(row / softcap) for row in rounded]
        edited = [edit.applied(ids[place], capped[place]) for place, edit in enumerate(edits)]
        chosen = [pick(ids[place], row, drawing, place) for place, row in enumerate(edited)]
        scanned = np.concatenate([top.answer.scanned for top in tops])
        known = np.concatenate([top.answer.proven for top in tops])
        open_ = zip(edited, rounded, edits, strict=True)
        proven = known & [drawing is None and _apart(*one) for one in open_]
        return Chosen(np.array(chosen, np.int32), scanned, proven)

    def _known(self, row: Float32, edit: RowEdits, k: int) -> TopKReply:
        """Return the k best unedited ids of a row [1, D], and all edited ones."""
        changed = edit.valued
        edited = {*edit.banned, *changed}
        allowed = edit.allowed
        left = self._vocab_size - len(edited) if allowed is None else len({*allowed} - edited)
        asked = []
        if left > 0:
            others = Constraints(banned=sorted(edited), allowed=allowed)
            asked.append((min(k, left), others))
        if changed:
            asked.append((len(changed), Constraints(allowed=changed)))
        tops = [
            self._decoder.topk(row, count, constraints=constraints, **self._spec)
            for count, constraints in asked
        ]
        if not tops:
            raise InvalidRequest("allowed", "no id that is not banned", "one or more")
        answer = tops[0].answer._replace(
            scanned=np.add.reduce([top.answer.scanned for top in tops]),
            proven=np.logical_and.reduce([top.answer.proven for top in tops]),
            max_error=min(1.0, sum(float(top.answer.max_errors.max()) for top in tops)),
        )
        ids, logits = (np.concatenate([top[part] for top in tops], axis=1) for part in (0, 1))
        return TopKReply(ids, logits, answer)


def _apart(edited: Float64, logits: Float64, edit: RowEdits) -> bool:
    """Return True if the best id is the best however its logit and the others were rounded."""
    if len(edited) == 1:
        return True
    second, best = np.partition(edited, -2)[-2:]
    factor = max(edit.repetition_penalty, 1 / edit.repetition_penalty)
    return bool(best - second > ROUNDED * (factor * np.abs(logits).max() + abs(best)))


def as_constraints(edits: Sequence[RowEdits]) -> Constraints | None:
    lists: dict[str, Any] = {}
    if any(edit.banned for edit in edits):
        lists["banned"] = [list(edit.banned) for edit in edits]
    if any(edit.allowed is not None for edit in edits):
        lists["allowed"] = [list(edit.allowed or ()) for edit in edits]
    if any(edit.bias for edit in edits):
        lists["biased"] = [list(edit.bias) for edit in edits]
        lists["bias"] = [list(edit.bias.values()) for edit in edits]
    if any(edit.valued for edit in edits) and edits[0].repetition_penalty != 1:
        lists["repeated"] = [list(edit.repeated) for edit in edits]
        lists["repetition_penalty"] = edits[0].repetition_penalty
    return Constraints(**lists) if lists else None


def pick(ids: Int64, logits: Float64, drawing: Sampling | None, row: int) -> int:
    """Return the best of `ids`, with ties by the lower id, or a draw by the noise of all heads.

    InvalidRequest if no id is allowed.
    """
    best = logits.max()
    if best == -np.inf:
        raise InvalidRequest("allowed", "no id that is not banned", "one or more")
    if drawing is None or drawing.temperature == 0:
        return int(ids[logits == best].min())
    left = np.flatnonzero(logits > -np.inf)
    order = left[np.lexsort((ids[left], -logits[left]))][: drawing.top_k or None]
    kept, inverse = logits[order], drawing.scale
    lengths, place = np.empty(1, np.int64), np.empty((1, 1), np.int32)
    cut_lists(np.array([0, len(kept)]), kept, inverse, *drawing.filters, lengths)
    listed, noise = ids[order].astype(np.int32), (drawing.seeds[row : row + 1], drawing.step)
    list_sample(np.append(0, lengths), listed, kept, *noise, inverse, 0, place)
    return int(listed[place[0, 0]])
