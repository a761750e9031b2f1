"""Decoders in this process; the service uses them too, so both agree bit for bit."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import inf, isfinite
from types import MappingProxyType
from typing import Protocol, Unpack

import numpy as np
from numpy import ndarray

from logitsieve.api import requests
from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import (
    BeamOptions,
    KnobValues,
    SampleOptions,
    Target,
    check_keywords,
    point_request,
    shows_keywords,
)
from logitsieve.api.errors import InvalidKnob, ModelNotFound
from logitsieve.api.requests import Beams, Sampling
from logitsieve.api.results import (
    ArrayLike,
    BeamStepReply,
    Float32,
    Int32,
    SampleReply,
    ScoreReply,
    TopKReply,
)
from logitsieve.decoding.auto import Auto, proving_draws, read_auto
from logitsieve.decoding.engine import Engine
from logitsieve.evaluation import OperatingPoint
from logitsieve.heads._base.kernel_head import Head
from logitsieve.index import Index

# Clients use a handful; a stream of new knobs must not grow memory.
ENGINES_KEPT = 64
# Batch sizes times ks times the precisions that clients ask for.
CHOICES_KEPT = 256
MANY_ROWS = 256  # beyond which a call is long


class Answering(Protocol):
    """An engine: the methods of `Decoder` for checked requests, hidden and k of `topk` excepted."""

    def topk(self, hidden: ArrayLike, k: int, constraints: Constraints | None = None) -> TopKReply:
        """See `Decoder.topk`."""

    def score(self, hidden: Float32, targets: Int32, constraints: Constraints | None) -> ScoreReply:
        """See `Decoder.score`."""

    def sample(
        self, hidden: Float32, sampling: Sampling, constraints: Constraints | None
    ) -> SampleReply:
        """See `Decoder.sample`."""

    def beam_step(
        self, hidden: Float32, beams: Beams, constraints: Constraints | None
    ) -> BeamStepReply:
        """See `Decoder.beam_step`."""


class CheckedDecoder(ABC):
    """A decoder in this process: it checks each request, then an engine answers."""

    vocab_size: int
    # Engines by the rows of a request without keywords, or by `head`, if that is the only one.
    _usual: Mapping[int | str | None, Engine] = MappingProxyType({})

    @abstractmethod
    def rows(self, hidden: ArrayLike) -> Float32:
        """Convert `hidden` [B, D] or [D] to float32 [B, D]; InvalidRequest names the fault."""

    @abstractmethod
    def engine_for(self, target: Target, rows: int, k: int, *, draws: bool = False) -> Answering:
        """Return the engine for `k` ids, or for draws, of each of `rows` rows."""

    @shows_keywords(Target)
    def topk(
        self,
        hidden: ArrayLike,
        k: int,
        *,
        constraints: Constraints | None = None,
        **target: Unpack[Target],
    ) -> TopKReply:
        """Return the k best tokens of each row; see `Decoder.topk`."""
        if constraints is None and type(hidden) is ndarray and hidden.ndim and len(target) < 2:
            engine = self._usual.get(target.get("head") if target else len(hidden))
            if engine is not None:  # most calls: the rest would take longer than the answer
                found = engine.enter(hidden, k)
                if type(found) is TopKReply:
                    return found
                if found is not None:
                    return engine.finished(found, hidden, k)
        if target:
            check_keywords(Target, target)
        if type(hidden) is not ndarray or hidden.ndim != 2:
            hidden = self.rows(hidden)
        return self.engine_for(target, len(hidden), k).topk(hidden, k, constraints)

    @shows_keywords(Target)
    def score(
        self,
        hidden: ArrayLike,
        targets: ArrayLike,
        *,
        constraints: Constraints | None = None,
        **target: Unpack[Target],
    ) -> ScoreReply:
        """Return log-probabilities of `targets`; see `Decoder.score`. Raises like `topk`."""
        check_keywords(Target, target)
        hidden = self.rows(hidden)
        ready = requests.score_targets(targets, len(hidden))
        return self.engine_for(target, len(hidden), 1).score(hidden, ready, constraints)

    @shows_keywords(SampleOptions)
    def sample(
        self,
        hidden: ArrayLike,
        samples: int = 1,
        *,
        constraints: Constraints | None = None,
        **options: Unpack[SampleOptions],
    ) -> SampleReply:
        """Draw for each row; see `Decoder.sample`. Raises like `topk`."""
        hidden = self.rows(hidden)
        ready = requests.sampling(len(hidden), samples, options)
        engine = self.engine_for(options, len(hidden), 1, draws=True)
        return engine.sample(hidden, ready, constraints)

    @shows_keywords(BeamOptions)
    def beam_step(
        self,
        hidden: ArrayLike,
        scores: ArrayLike | None = None,
        *,
        beams_in: int,
        beams_out: int,
        constraints: Constraints | None = None,
        **options: Unpack[BeamOptions],
    ) -> BeamStepReply:
        """Take a step of a beam search; see `Decoder.beam_step`. Raises like `topk`."""
        hidden = self.rows(hidden)
        ready = requests.beams(len(hidden), scores, beams_in, beams_out, options)
        k = min(beams_out, self.vocab_size)
        return self.engine_for(options, len(hidden), k).beam_step(hidden, ready, constraints)


class LocalDecoder(CheckedDecoder):
    """Answers from one open index. Thread-safe. IndexUnreadable for a bad calibration.json."""

    def __init__(self, index: Index, *, name: str = "") -> None:
        self.index, self.vocab_size = index, index.vocab_size
        self._engine: type[Engine] = index.backend.engine if index.backend else Engine
        self.name = name or index.name
        self.version = str(index.version)
        self._names = ("", self.name, f"{self.name}@{self.version}")
        self._head = lru_cache(maxsize=ENGINES_KEPT)(self._make_head)
        # (head or "", knobs sorted by name, normalizer or "", width) -> Engine
        self.engine = lru_cache(maxsize=ENGINES_KEPT)(self._make_engine)
        self.auto: Auto = read_auto(index, self._head)
        self._usual: dict[int | str | None, Engine] = {}
        # (batch size, class of k, precision or None, normalizer or "", width) -> Engine
        self._chosen = lru_cache(maxsize=CHOICES_KEPT)(self._choose)

    def __repr__(self) -> str:
        return f"<LocalDecoder {self._names[-1]}: default head {self.index.default_head}>"

    @property
    def takes_tensors(self) -> bool:
        """True if tensors on the index's GPU are answered in tensors (docs/gpu.md)."""
        return self._engine.takes_tensors

    @property
    def points(self) -> tuple[OperatingPoint, ...]:
        """The measured points of AUTO; empty without a calibration."""
        return self.auto.points

    def rows(self, hidden: ArrayLike) -> Float32:
        """See `CheckedDecoder`."""
        return self._engine.rows(self.index, hidden)

    def engine_for(self, target: Target, rows: int, k: int, *, draws: bool = False) -> Engine:
        """See `CheckedDecoder`."""
        auto = self.auto
        if not target and not draws:  # a faster way to the same
            engine = self._chosen(auto.batch(rows), 0, None, "", inf)
            if rows <= MANY_ROWS:
                self._usual[rows] = engine
            return engine
        if (model := target.get("model", "")) not in self._names:
            raise ModelNotFound(f"model: got {model}, here is only {self._names[-1]}", "model")
        request = point_request(target)
        if draws:
            request = proving_draws(request, self.index.heads, auto)
        if not request.automatic:
            engine = self.engine(request.head, request.knobs, request.normalizer, request.width)
            if not draws and [*target] == ["head"]:
                self._usual[request.head] = engine
            return engine
        k_class = auto.k_class(k, request.precision)
        return self._chosen(
            auto.batch(rows), k_class, request.precision, request.normalizer, request.width
        )

    def warm(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Compile every kernel that a request may need."""
        self.index.warm(progress)
        zeros = np.zeros((1, self.index.dim), np.float32)
        unbiased = Constraints(biased=[0], bias=[0.0])
        self.topk(zeros, 1, constraints=unbiased, normalizer="sampled")
        self.beam_step(zeros, beams_in=1, beams_out=1)
        self.sample(zeros, top_k=1)
        for head in self.index.heads:
            self.sample(zeros, head=head)
            self.sample(zeros, head=head, min_p=0.5)
        if "svd" in self.index.heads:
            self.topk(zeros, 1, normalizer="lowrank")

    def close(self) -> None:
        """Release the index and everything made from it; no call may be active."""
        self._usual.clear()
        self._chosen.cache_clear()
        self.engine.cache_clear()
        self._head.cache_clear()
        self.index.close()

    def _make_head(self, name: str, knobs: KnobValues) -> Head:
        head = self.index.head(name)
        for knob, value in knobs:
            if knob not in head.knob_table:
                raise InvalidKnob.unknown(knob, value, head.knob_table)
            if not isfinite(value):
                raise InvalidKnob(f"knobs.{knob}", value, "a finite number")
        return head.with_knobs(**dict(knobs))

    def _choose(
        self, batch: int, k: int, precision: float | None, normalizer: str, width: float
    ) -> Engine:
        return self.engine(*self.auto.choose(batch, k, precision), normalizer, width)

    def _make_engine(
        self, head: str, knobs: KnobValues, normalizer: str, width: float = inf
    ) -> Engine:
        return self._engine(self.name, self.index, self._head(head, knobs), normalizer, width)
