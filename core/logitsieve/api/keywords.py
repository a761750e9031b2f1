"""The keywords of a decoder's methods, and their checks."""

from __future__ import annotations  # help() shows types as they are written

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import inf, nextafter
from numbers import Real
from typing import Any, Literal, NamedTuple, Self, TypedDict, TypeVar, get_args

from logitsieve.api.checks import number
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike

MAX_ERROR = 1e-15  # the default chance that a row's top k is wrong
BELOW_1 = nextafter(1.0, 0.0)
AUTO = "AUTO"  # as a head's name: the fastest operating point that is precise enough
FALLBACKS = ("full", "sketch", "svd")  # heads that may answer rows which others cannot

NormalizerName = Literal["candidates", "lowrank", "sampled", "sketch", "full", "approximate"]
KnobValues = tuple[tuple[str, float], ...]  # sorted by name
# A request's need of all V ids: for draws, for beam steps, or for the best ids and log Z.
Purpose = Literal["", "draws", "steps", "best"]

NARROWEST, WIDEST = 1e-9, 100.0  # nats: limits of `width`

# decoder.proto's Normalizer has the same order.
NORMALIZER_CODES = {name: code for code, name in enumerate(get_args(NormalizerName), start=1)}


class ModelSpec(TypedDict, total=False):
    """Keywords of every method of a decoder: the model, and how it answers.

    `model` is "name", "name@version" or "name:alias"; empty means the only one loaded.

    `knobs` override the stored ones of `head`, or of the default head. Without both, or with the
    head "AUTO", the fastest operating point measured for the batch size answers which reaches
    `min_precision` at k (rounded up to 1, 5 or 10; beyond 10 only proofs do), proves its answers
    (`exact`), or is wrong with a chance of at most `max_error` a row: by default the index's target
    precision or, without one, a `max_error` of 1e-15. `max_error`, from 0 (a proof) to below 1, is
    a knob of the head `sketch`.

    `normalizer` is the method for log Z. By default `topk` computes none, and the other methods
    choose one, which the answer names.

    `width`, 1e-9 to 100 nats, limits the proven interval of log Z, and so the error of each
    log-probability before rounding to float32. It needs a `normalizer` that proves intervals, by
    default `sketch`, or `full` if the index lacks it.
    """

    model: str
    head: str
    knobs: Mapping[str, float] | None
    min_precision: float | None
    exact: bool
    max_error: float | None
    normalizer: NormalizerName | None
    width: float | None


class SampleOptions(ModelSpec, total=False):
    """Keywords of `sample`: `ModelSpec`'s, and how to draw.

    Without a head and a precision, `sketch` draws within `max_error`, by default 1e-15, or `full`
    if the index lacks `sketch` or measured it to be slower. Above a `max_error` of 0 log Z may be
    an estimate, which the answer calls `approximate`, unless there is a `normalizer` or a `width`.

    Filters apply after the temperature: `top_k` keeps the k best ids (0: all), `top_p` the smallest
    set of these with at least this probability, and `min_p` the ids at least this many times as
    probable as the best. Temperature 0 returns the best id.

    A draw depends on its row's seed (uint64 [B]), `step` and its number among the row's draws. One
    number as `seeds` is spread: row r gets (seeds + r * 0x9E3779B97F4A7C15) mod 2^64. None draws
    fresh seeds. Equal arguments, version, head and knobs give equal ids.

    `replace=False` draws `samples` different ids, ordered by logits / temperature plus Gumbel noise
    (`perturbed`). The first is the draw with replacement. If filters or constraints leave fewer
    ids, the rest are -1, with log-probabilities and perturbed logits of -inf.

    `log_probs=False` may leave log-probabilities NaN and log Z None. `full` and `sketch` then draw
    nearly as fast as they find the best ids, with the same `max_error`.
    """

    seeds: ArrayLike | None
    step: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    log_probs: bool
    replace: bool


class BeamOptions(ModelSpec, total=False):
    """Keywords of `beam_step`: `ModelSpec`'s, and the state of the hypotheses.

    `lengths` [B] are in tokens, by default 0; `finished` [B] is by default False.
    """

    lengths: ArrayLike | None
    finished: ArrayLike | None
    eos_ids: Sequence[int]
    length_penalty: float


F = TypeVar("F", bound=Callable[..., Any])


def check_keywords(options: type, given: Mapping[str, Any]) -> None:
    """Raise TypeError for a keyword that the TypedDict `options` lacks."""
    if not given.keys() <= options.__annotations__.keys():
        unknown = ", ".join(sorted(given.keys() - options.__annotations__.keys()))
        raise TypeError(
            f"unknown keyword: {unknown}; allowed: {', '.join(options.__annotations__)}"
        )


def shows_keywords(options: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Make help() list each keyword of `**kwargs: Unpack[options]`."""

    def decorate(method: F) -> F:
        signature = inspect.signature(method)
        shown = [each for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
        shown += [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults[name],
                annotation=getattr(annotation, "__forward_arg__", annotation),
            )
            for name, annotation in options.__annotations__.items()
        ]
        method.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return method

    return decorate


class ResolvedSpec(NamedTuple):
    """A checked ModelSpec: a choice for AUTO to make, or a head with knobs."""

    automatic: bool
    precision: float | None  # AUTO's; 1 for a proof, None for the index's target
    head: str
    knobs: KnobValues
    normalizer: str  # "" for none
    width: float = inf
    max_error: float | None = None  # AUTO's

    @classmethod
    def of(
        cls, head: str, knobs: KnobValues, precision: float | None, max_error: Any,
        normalizer: str, width: float,
    ) -> Self:  # fmt: skip
        """Resolve checked fields: without head and knobs AUTO chooses; or InvalidRequest."""
        asked = asked_max_error(max_error, knobs, precision)
        if not head and not knobs:
            return cls(True, precision, "", (), normalizer, width, asked)
        added = () if asked is None else (("max_error", asked),)
        return cls(False, None, head, tuple(sorted(knobs + added)), normalizer, width)


def asked_precision(
    head: str, knobs: Mapping[str, float] | None, min_precision: float | None, exact: bool
) -> float | None:
    """Check AUTO's keywords, and return `ResolvedSpec.precision`."""
    if type(exact) is not bool:
        raise InvalidRequest("exact", repr(exact), "True or False")
    if min_precision is not None:
        real = isinstance(min_precision, (float, Real)) and not isinstance(min_precision, bool)
        if not real or not 0 < min_precision <= 1:
            raise InvalidRequest("min_precision", repr(min_precision), "a number in (0, 1]")
        if exact:
            raise InvalidRequest("min_precision", min_precision, "none beside exact")
    if head not in ("", AUTO):
        allowed = f"{AUTO!r}, or none, beside min_precision or exact"
        raise InvalidRequest("head", repr(head), allowed)
    if knobs:
        raise InvalidRequest("knobs", f"{knobs!r:.80}", "none: AUTO chooses them")
    if exact:
        return 1.0
    return None if min_precision is None else float(min_precision)


def asked_max_error(
    max_error: Any, knobs: KnobValues = (), precision: float | None = None
) -> float | None:
    if max_error is None:
        return None
    if precision is not None or "max_error" in dict(knobs):
        allowed = "none beside exact, min_precision or knobs.max_error"
        raise InvalidRequest("max_error", f"{max_error!r:.80}", allowed)
    return number("max_error", max_error, 0.0, BELOW_1)


def asked_width(width: float | None) -> float:
    return inf if width is None else number("width", width, NARROWEST, WIDEST)


DEFAULT_SPEC = ResolvedSpec(True, None, "", (), "")
ANSWERING = ModelSpec.__annotations__.keys() - {"model"}


def resolved_spec(spec: ModelSpec) -> ResolvedSpec:
    if spec.keys().isdisjoint(ANSWERING):
        return DEFAULT_SPEC
    head, knobs = spec.get("head", ""), spec.get("knobs")
    precision, exact = spec.get("min_precision"), spec.get("exact", False)
    log_z = spec.get("normalizer") or "", asked_width(spec.get("width"))
    asked = None
    if precision is not None or exact is not False or head == AUTO:
        asked, head, knobs = asked_precision(head, knobs, precision, exact), "", None
    return ResolvedSpec.of(head, knob_values(knobs), asked, spec.get("max_error"), *log_z)


def knob_values(knobs: Mapping[str, float] | None) -> KnobValues:
    """Check that knobs are numbers, and sort them by name."""
    try:
        return tuple(sorted((str(name), float(value)) for name, value in (knobs or {}).items()))
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest("knobs", f"{knobs!r:.80}", "a number for each knob's name") from error
