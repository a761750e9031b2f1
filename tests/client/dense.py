"""A Decoder of plain numpy over all V logits: the reference of what is built on decoders."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from logitsieve.api.constraints import SETS, Constraints
from logitsieve.api.decoder import Decoder, EngineBase
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import ModelSpec, Purpose
from logitsieve.api.mask import unpacked
from logitsieve.api.requests import BeamStepRequest, SampleRequest, ScoreRequest, TopKRequest
from logitsieve.api.results import (
    Answer,
    ArrayLike,
    BeamStepReply,
    Float64,
    SampleReply,
    ScoreReply,
    TopKReply,
)
from logitsieve.client.huggingface import Attachment, attach
from logitsieve.utils.hidden import as_hidden
from tests.client.tiny_models import prompts
from tests.oracle import edited

Limits = Constraints | None


class DenseDecoder(Decoder):
    """Answers from a weight [V, D] and a bias [V]; counts what it is asked for."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray | None = None) -> None:
        self.weight = np.asarray(weight, np.float64)
        self.bias = np.zeros(len(weight)) if bias is None else np.asarray(bias, np.float64)
        self.asked: list[tuple[str, Any]] = []  # (method, spec)

    def _rows(self, hidden_states: ArrayLike) -> np.ndarray:
        return as_hidden(hidden_states, self.weight.shape[1])

    def engine_for(self, spec: ModelSpec, rows: int, k: int, purpose: Purpose = "") -> Any:
        asked = {name: value for name, value in spec.items() if name in ModelSpec.__annotations__}
        return DenseEngine(self, cast("ModelSpec", asked))


@dataclass(frozen=True)
class DenseEngine(EngineBase):
    decoder: DenseDecoder
    spec: ModelSpec

    def _topk(self, request: TopKRequest) -> TopKReply:
        k, logits = request.k, self._asked("topk", request.hidden_states, request.constraints)
        if (np.isfinite(logits).sum(axis=1) < k).any():
            raise InvalidRequest("k", k, "as many as the constraints leave")
        ids = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(logits, ids, axis=1).astype(np.float32)
        normalizer = self.spec.get("normalizer") or ""
        return TopKReply(ids.astype(np.int32), best, self._answer(logits, normalizer))

    def _score(self, request: ScoreRequest) -> ScoreReply:
        logits = self._asked("score", request.hidden_states, request.constraints)
        found = np.take_along_axis(log_softmax(logits), request.token_ids, axis=1)
        return ScoreReply(found.astype(np.float32), self._answer(logits, "full"))

    def _sample(self, request: SampleRequest) -> SampleReply:
        """By Gumbel noise of numpy's generators, without `top_k` and at step 0."""
        sampling = request.sampling
        assert not sampling.top_k
        logits = self._asked("sample", request.hidden_states, request.constraints)
        logits /= sampling.temperature
        _filter(logits, sampling.top_p, sampling.min_p)
        noise = [
            np.random.default_rng(int(seed)).gumbel(size=(sampling.samples, len(row)))
            for seed, row in zip(sampling.seeds, logits, strict=True)
        ]
        ids = (logits[:, None] + noise).argmax(axis=2)
        log_probs = np.take_along_axis(log_softmax(logits), ids, axis=1)
        answer = self._answer(logits, self.spec.get("normalizer") or "")
        return SampleReply(ids.astype(np.int32), log_probs.astype(np.float32), None, answer)

    def _beam_step(self, request: BeamStepRequest) -> BeamStepReply:
        """Hypotheses that have not finished, without a length penalty."""
        hidden_states, beams = request.hidden_states, request.beams
        assert not beams.finished.any()
        assert beams.length_penalty == 0
        logits = self._asked("beam_step", hidden_states)
        sums = log_softmax(logits) + beams.scores[:, None].astype(np.float64)
        sums[~np.isfinite(self._logits(hidden_states, request.constraints))] = -np.inf
        width = sums.shape[1]
        groups = sums.reshape(-1, beams.beams_in * width)
        order = np.argsort(-groups, axis=1, kind="stable")[:, : beams.beams_out]
        best = np.take_along_axis(groups, order, axis=1).astype(np.float32)
        short = ((0, 0), (0, beams.beams_out - order.shape[1]))
        order, best = (np.pad(order, short), np.pad(best, short, constant_values=-np.inf))
        absent = ~np.isfinite(best)
        tokens = np.where(absent, -1, order % width).astype(np.int32)
        parents = np.where(absent, -1, order // width).astype(np.int32)
        ended = np.isin(tokens, list(beams.eos_ids))
        return BeamStepReply(parents, tokens, best, best, ended, self._answer(logits, "full"))

    def _asked(self, method: str, hidden_states: ArrayLike, constraints: Limits = None) -> Float64:
        self.decoder.asked.append((method, self.spec))
        return self._logits(hidden_states, constraints)

    def _logits(self, hidden_states: ArrayLike, constraints: Constraints | None = None) -> Float64:
        rows = as_hidden(hidden_states, self.decoder.weight.shape[1]).astype(np.float64)
        logits: Float64 = rows @ self.decoder.weight.T + self.decoder.bias
        if constraints is not None:
            sets = constraints.for_rows(len(rows))
            logits = np.stack([_edited(sets, row, each) for row, each in enumerate(logits)])
        return logits

    def _answer(self, logits: Float64, normalizer: str) -> Answer:
        rows = len(logits)
        log_z = np.logaddexp.reduce(logits, axis=1).astype(np.float32) if normalizer else None
        proven, scanned = np.ones(rows, np.bool_), np.full(rows, logits.shape[1], np.int32)
        plain = np.zeros(rows, np.bool_)
        return Answer(
            "dense", "1", "", "full", proven, scanned, plain, normalizer=normalizer, log_z=log_z
        )


def log_softmax(logits: Float64) -> Float64:
    found: Float64 = logits - np.logaddexp.reduce(logits, axis=1)[:, None]
    return found


def _edited(sets: Any, row: int, logits: Float64) -> Float64:
    def of_row(name: str, values: Any) -> list[Any]:
        start, stop = getattr(sets, name).offsets[row : row + 2]
        return list(values[start:stop].tolist())

    lists: dict[str, Any] = {
        name: of_row(name, given.ids) for name in SETS if (given := getattr(sets, name)) is not None
    }
    if "biased" in lists:
        lists["biased"] = dict(zip(lists["biased"], of_row("biased", sets.bias), strict=True))
    found = edited(logits, **lists, penalty=sets.repetition_penalty)
    if sets.mask is not None:
        found[~unpacked(sets.mask[row : row + 1], found.size)[0]] = -np.inf
    return found


def _filter(logits: Float64, top_p: float, min_p: float) -> None:
    """Leave what Hugging Face's top_p, then min_p leave of each row, in place."""
    least = logits.max(axis=1, keepdims=True) + (np.log(min_p) if min_p else -np.inf)
    log_probs = log_softmax(logits)
    rising = np.sort(log_probs, axis=1)
    out = (np.exp(rising).cumsum(axis=1) <= 1 - top_p) & (top_p < 1)
    nucleus = log_probs >= np.where(out, np.inf, rising).min(axis=1, keepdims=True)
    logits[(logits < least) | ~nucleus] = -np.inf


def decoder_of(model: Any) -> DenseDecoder:
    weight = model.lm_head.weight.detach().numpy().copy()
    bias = getattr(model, "final_logits_bias", torch.zeros(1, len(weight)))[0].numpy().copy()
    return DenseDecoder(weight, bias)


def attach_dense(model: Any, **options: Any) -> Attachment:
    return attach(model, decoder_of(model), **options)


def generate(model: Any, **options: Any) -> list[list[int]]:
    torch.manual_seed(11)
    chosen = {"max_new_tokens": 9, "do_sample": False} | options
    made: list[list[int]] = model.generate(**prompts(), **chosen).tolist()
    return made


def targets_of(decoder: DenseDecoder) -> list[str]:
    return [spec.get("normalizer") or "" for method, spec in decoder.asked if method == "topk"]
