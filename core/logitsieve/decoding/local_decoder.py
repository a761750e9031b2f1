"""The decoder of an index in this process; the server uses it too, so both agree bit for bit."""

from collections.abc import Callable
from functools import lru_cache
from math import inf, isfinite

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidKnob, ModelNotFound
from logitsieve.api.keywords import (
    DEFAULT_SPEC,
    KnobValues,
    ModelSpec,
    Purpose,
    ResolvedSpec,
    resolved_spec,
)
from logitsieve.api.requests import FILTERS
from logitsieve.api.results import ArrayLike, Float32
from logitsieve.decoding.auto import Auto, fitted_to, measured_elsewhere, read_auto
from logitsieve.decoding.engine import LocalEngine
from logitsieve.evaluation import OperatingPoint
from logitsieve.heads._base.kernel_head import Head
from logitsieve.heads.sketch import SketchHead
from logitsieve.index import Index

ENGINES_KEPT = 64  # clients use a handful, but each new value of a knob makes another
CHOICES_KEPT = 256  # combinations of a spec without a head, a purpose, rows and k


class LocalDecoder(Decoder):
    """Answers from one open index. Thread-safe. Raises IndexUnreadable for a bad calibration.json.

    It takes the answers' `model` from `name`, by default the index's.
    """

    def __init__(self, index: Index, *, name: str = "") -> None:
        self.index, self._most_ids = index, index.vocab_size
        self._engine: type[LocalEngine] = index.backend.engine if index.backend else LocalEngine
        self.name = name or index.name
        self.version = str(index.version)
        self._names = ("", self.name, f"{self.name}@{self.version}")
        self._head = lru_cache(maxsize=ENGINES_KEPT)(self._make_head)
        self.engine = lru_cache(maxsize=ENGINES_KEPT)(self._make_engine)
        self.auto: Auto = read_auto(index, self._at)
        self._measured_here = not measured_elsewhere(index)
        self._chosen = lru_cache(maxsize=CHOICES_KEPT)(self._choose)

    def __repr__(self) -> str:
        return f"<LocalDecoder {self._names[-1]}: default head {self.index.default_head}>"

    @property
    def takes_tensors(self) -> bool:
        """True if tensors on the index's GPU get replies of tensors (docs/gpu.md)."""
        return self._engine.takes_tensors

    @property
    def points(self) -> tuple[OperatingPoint, ...]:
        """The operating points of the calibration, if there is one."""
        return self.auto.points

    def _rows(self, hidden_states: ArrayLike) -> Float32:
        return self._engine.rows(self.index, hidden_states)

    def engine_for(self, spec: ModelSpec, rows: int, k: int, purpose: Purpose = "") -> LocalEngine:
        """See `Decoder`."""
        auto = self.auto
        if not spec and purpose in ("", "best"):  # a shortcut to the same answer
            return self._chosen(DEFAULT_SPEC, "", auto.batch(rows), 0)
        if (model := spec.get("model", "")) not in self._names:
            raise ModelNotFound(f"model: got {model}, here is only {self._names[-1]}", "model")
        asked = resolved_spec(spec)
        if not asked.automatic:
            return self.engine(asked.head, asked.knobs, asked.normalizer, asked.width)
        k_class = 0 if asked.precision is None else auto.k_class(k, asked.precision)
        return self._chosen(asked, purpose, rows, k_class)

    def warm(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Compile every kernel that a request may need; `progress` as `Index.warm` calls it."""
        self.index.warm(progress)
        zeros = np.zeros((1, self.index.dim), np.float32)
        unbiased = Constraints(biased=[0], bias=[0.0])
        self.topk(zeros, 1, constraints=unbiased, normalizer="sampled")
        self.beam_step(zeros, beams_in=1, beams_out=1)
        self.sample(zeros, top_k=1)
        for head in self.index.heads:
            self.sample(zeros, head=head)
            self.sample(zeros, head=head, log_probs=False)
            for filtering in FILTERS:
                self.sample(zeros, head=head, **{filtering: 0.5})  # type: ignore[arg-type]
        if "svd" in self.index.heads:
            self.topk(zeros, 1, normalizer="lowrank")

    def close(self) -> None:
        """Release the index; no call may be active."""
        self._chosen.cache_clear()
        self.engine.cache_clear()
        self._head.cache_clear()
        self.index.close()

    def _make_head(self, name: str, knobs: KnobValues) -> Head:
        """Return the head; `sketch` leaves calls of more rows than it was fastest for to `full`."""
        head = self._at(name, knobs)
        if isinstance(head, SketchHead) and self._measured_here:
            return head.up_to(self.auto.most_rows(head.max_error))
        return head

    def _at(self, name: str, knobs: KnobValues) -> Head:
        head = self.index.head(name)
        for knob, value in knobs:
            if knob not in head.knob_table:
                raise InvalidKnob.unknown(knob, value, head.knob_table)
            if not isfinite(value):
                raise InvalidKnob(f"knobs.{knob}", value, "a finite number")
        return head.with_knobs(**dict(knobs))

    def _choose(self, spec: ResolvedSpec, purpose: Purpose, rows: int, k: int) -> LocalEngine:
        spec = fitted_to(spec, purpose, self.auto, rows)
        setting = spec.head, spec.knobs
        if spec.automatic:
            setting = self.auto.choose(rows, k, spec.precision, spec.max_error)
        return self.engine(*setting, spec.normalizer, spec.width)

    def _make_engine(
        self, head: str, knobs: KnobValues, normalizer: str, width: float = inf
    ) -> LocalEngine:
        return self._engine(self.name, self.index, self._head(head, knobs), normalizer, width)
