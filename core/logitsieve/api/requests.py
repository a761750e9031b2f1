"""The requests that decoders, engines and services share; they are checked once."""

from __future__ import annotations

import secrets
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, log
from numbers import Real
from operator import index
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np

from logitsieve.api.checks import INT32_MAX, as_array, flag, id_rows, number, on_host, vector, whole
from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import BeamOptions, Purpose, SampleOptions, check_keywords
from logitsieve.api.results import (
    ArrayLike,
    BeamStepReply,
    Bool,
    Float32,
    Int32,
    SampleReply,
    ScoreReply,
    TopKReply,
    UInt64,
)

MOST_SAMPLES = 1 << 20  # draws per row
MOST_BEAMS = 1 << 12
MOST_STEPS = 1 << 64
COLDEST, HOTTEST = 1e-5, 1e4  # temperatures other than 0
LEAST_TOP_P = float(np.nextafter(0.0, 1.0))
STEEPEST = 10.0  # largest exponent of the length penalty, of either sign
FILTERS, NO_FILTERS = ("top_p", "min_p"), (1.0, 0.0)  # and the values that remove no id
SEED_STRIDE = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 / golden ratio, in the bits of an int64


class Sampling(NamedTuple):
    """Checked options of draws, as heads and kernels take them; see `SampleOptions`."""

    samples: int
    seeds: UInt64  # [B]
    step: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    log_probs: bool = True
    replace: bool = True

    @property
    def scale(self) -> float:
        """The factor of logits, 1 / temperature; 1 at temperature 0, which leaves one id."""
        return 1.0 / (self.temperature or 1.0)

    @property
    def filters(self) -> tuple[float, float]:
        """The values of FILTERS, in the order in which kernels apply them."""
        return self.top_p, self.min_p

    @property
    def filtered(self) -> bool:
        """True if a filter may remove ids."""
        return (self.top_p, self.min_p) != NO_FILTERS

    @property
    def least_log_share(self) -> float:
        """The least x / temperature that `min_p` keeps, relative to the best id's."""
        return log(self.min_p) if self.min_p > 0.0 else -inf

    @classmethod
    def of(cls, rows: int, samples: int, options: SampleOptions) -> Self:
        """Check options of draws; raises InvalidRequest, or TypeError for an unknown keyword."""
        check_keywords(SampleOptions, options)
        checked: dict[str, Any] = {}
        for name, value in options.items():
            if name in SAMPLING_CHECKS:
                checked[name] = SAMPLING_CHECKS[name](value)
        seeds = _seeds(options.get("seeds"), rows)
        how = cls(whole("samples", samples, 1, MOST_SAMPLES), seeds, **checked)
        if how.temperature == 0 and not how.replace:
            allowed = "above 0 without replacement: `topk` answers the best ids in order"
            raise InvalidRequest("temperature", 0, allowed)
        return how


# The default of every keyword of the decoders' methods.
DEFAULTS: Mapping[str, Any] = {
    "model": "",
    "head": "",
    "knobs": None,
    "min_precision": None,
    "exact": False,
    "max_error": None,
    "normalizer": None,
    "width": None,
    "seeds": None,
    **Sampling._field_defaults,
    "lengths": None,
    "finished": None,
    "eos_ids": (),
    "length_penalty": 0.0,
}


class Beams(NamedTuple):
    """Checked hypotheses, [B]; see `Decoder.beam_step`."""

    beams_in: int
    beams_out: int
    scores: Float32
    lengths: Int32
    finished: Bool
    eos_ids: tuple[int, ...]
    length_penalty: float

    @classmethod
    def of(
        cls,
        rows: int,
        scores: ArrayLike | None,
        beams_in: int,
        beams_out: int,
        options: BeamOptions,
    ) -> Self:
        """Check hypotheses; raises like `Sampling.of`."""
        check_keywords(BeamOptions, options)
        given = {**DEFAULTS, **options}
        beams_in = whole("beams_in", beams_in, 1, MOST_BEAMS)
        if rows % beams_in:
            allowed = f"a divisor of the {rows} rows of hidden_states: one row a hypothesis"
            raise InvalidRequest("beams_in", beams_in, allowed)
        ready = cls(
            beams_in,
            whole("beams_out", beams_out, 1, MOST_BEAMS),
            vector("scores", scores, rows, np.float32, "iuf"),
            vector("lengths", given["lengths"], rows, np.int32, "iu"),
            vector("finished", given["finished"], rows, np.bool_, "b"),
            _eos(given["eos_ids"]),
            number("length_penalty", given["length_penalty"], -STEEPEST, STEEPEST),
        )
        if not np.isfinite(ready.scores).all():
            raise InvalidRequest("scores", "NaN or infinity", "finite numbers")
        if given["lengths"] is not None and (ready.lengths < 0).any():
            raise InvalidRequest("lengths", int(ready.lengths.min()), "0 or more")
        if not ready.eos_ids and ready.finished.any():
            raise InvalidRequest("eos_ids", "none", "at least one, where hypotheses have finished")
        return ready


def scored_ids(token_ids: ArrayLike, rows: int) -> Int32:
    """Check `token_ids`, [B, T] or [B], and return int32 [B, T]."""
    array = as_array("token_ids", token_ids, f"integers [{rows}, T] or [{rows}], T >= 1")
    return id_rows("token_ids", array[:, None] if array.ndim == 1 else array, rows, INT32_MAX)


R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class Request(ABC, Generic[R_co]):
    """A request about hidden_states, which an engine answers with an `R_co`.

    A subclass adds one field, named by ASKED: a value, or a NamedTuple with arrays of B rows. It is
    checked except for D and V, which only the engine knows.
    """

    hidden_states: Any  # [B, D], of any type that `Decoder.topk` takes
    constraints: Constraints | None = field(default=None, kw_only=True)

    METHOD: ClassVar[str]  # the decoder's method that makes the request
    ASKED: ClassVar[str]
    PURPOSE: ClassVar[Purpose] = ""
    CONSTRAINED: ClassVar[Purpose] = ""  # the purpose with constraints

    @property
    def options(self) -> Mapping[str, Any]:
        """The fields of this kind of request, with their names in decoder.proto."""
        value = getattr(self, self.ASKED)
        return value._asdict() if isinstance(value, Sampling | Beams) else {self.ASKED: value}

    def part(self, rows: slice) -> Self:
        """Return the request about some of its rows; its constraints must be from `for_rows`."""
        constraints = self.constraints
        if constraints is not None:
            constraints = constraints.take(np.arange(len(self.hidden_states))[rows])
        own: Any = {self.ASKED: _part(getattr(self, self.ASKED), rows), "constraints": constraints}
        return replace(self, hidden_states=self.hidden_states[rows], **own)


@dataclass(frozen=True, slots=True, eq=False)
class TopKRequest(Request[TopKReply]):
    """The `k` best ids of each row."""

    k: int

    METHOD, ASKED, PURPOSE = "topk", "k", "best"


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRequest(Request[ScoreReply]):
    """Log-probabilities of `token_ids`."""

    token_ids: Int32  # [B, T]

    METHOD, ASKED = "score", "token_ids"


@dataclass(frozen=True, slots=True, eq=False)
class SampleRequest(Request[SampleReply]):
    """Draws from each row's distribution."""

    sampling: Sampling

    METHOD, ASKED = "sample", "sampling"
    PURPOSE = CONSTRAINED = "draws"


@dataclass(frozen=True, slots=True, eq=False)
class BeamStepRequest(Request[BeamStepReply]):
    """The best continuations of each group of hypotheses."""

    beams: Beams

    METHOD, ASKED, PURPOSE = "beam_step", "beams", "steps"


def checked_temperature(value: Any, hottest: float = HOTTEST) -> float:
    real = isinstance(value, Real) and not isinstance(value, bool)
    if real and (value == 0 or COLDEST <= value <= hottest):
        return float(value)
    allowed = f"a number: 0, or {COLDEST:g} to {hottest:g}"
    raise InvalidRequest("temperature", f"{value!a:.80}", allowed)


# Defaults are not checked.
SAMPLING_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "step": partial(whole, "step", low=0, high=MOST_STEPS - 1),
    "temperature": checked_temperature,
    "top_k": partial(whole, "top_k", low=0, high=INT32_MAX),
    "top_p": partial(number, "top_p", low=LEAST_TOP_P, high=1.0),
    "min_p": partial(number, "min_p", low=0.0, high=1.0),
    "log_probs": partial(flag, "log_probs"),
    "replace": partial(flag, "replace"),
}


def _part(value: Any, rows: slice) -> Any:
    if isinstance(value, np.ndarray):
        return value[rows]
    if isinstance(value, Sampling | Beams):
        return type(value)(*(_part(each, rows) for each in value))
    return value


def _seeds(seeds: ArrayLike | None, rows: int) -> UInt64:
    if seeds is None:
        return np.frombuffer(secrets.token_bytes(8 * rows), np.uint64)
    if type(seeds) is int and rows == 1 and 0 <= seeds < MOST_STEPS:
        return np.array((seeds,), np.uint64)
    allowed = f"uint64 [{rows}], or one to be spread over the rows"
    if hasattr(seeds, "detach"):  # PyTorch users pass int64, as it has few operations on uint64
        seeds = on_host(seeds)
        seeds = seeds.view(np.uint64) if seeds.dtype == np.int64 else seeds
    try:
        # numpy would convert a list that mixes small and large integers to floats.
        array: Any = seeds if isinstance(seeds, np.ndarray) else np.array(seeds, np.object_)
        flat = [index(seed) for seed in array.ravel()]
        ready = np.array(flat, np.uint64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest("seeds", f"{seeds!r:.80}", allowed) from error
    if array.ndim == 0:
        # Row 0 keeps the seed. Draws are independent, since the rows get different Philox keys.
        spread: UInt64 = (ready.view(np.int64) + np.arange(rows) * SEED_STRIDE).view(np.uint64)
        return spread
    if array.size != rows:
        raise InvalidRequest("seeds", f"{array.size} seeds", allowed)
    return ready


def _eos(eos_ids: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(whole("eos_ids", one, 0, INT32_MAX) for one in eos_ids)
    except TypeError as error:
        raise InvalidRequest("eos_ids", repr(eos_ids), "a list of ids") from error
