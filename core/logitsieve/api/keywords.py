"""Keywords of a decoder's methods: their defaults and checks."""

from __future__ import annotations  # help() shows types as they are written

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import inf, nextafter
from numbers import Real
from typing import Any, Literal, NamedTuple, Self, TypedDict, TypeVar, get_args

from logitsieve.api.checks import number
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike

MAX_ERROR = 1e-15  # of a row's top k to be wrong, if nothing else is asked
BELOW_1 = nextafter(1.0, 0.0)
AUTO = "AUTO"  # instead of a head: the cheapest operating point that is precise enough
FALLBACKS = ("full", "sketch", "svd")  # heads that may answer what others leave

NormalizerName = Literal["candidates", "lowrank", "sampled", "sketch", "full", "approximate"]
KnobValues = tuple[tuple[str, float], ...]  # sorted by name
# What a request needs from all V ids: draws, beam steps, or the best ids and log Z.
Purpose = Literal["", "draws", "steps", "best"]

NARROWEST, WIDEST = 1e-9, 100.0  # nats: limits on the width of log Z

# Codes of decoder.proto's Normalizer, in the same order.
NORMALIZER_CODES = {name: code for code, name in enumerate(get_args(NormalizerName), start=1)}


class ModelSpec(TypedDict, total=False):
    """Keywords of every method of a decoder: the model, and how it answers.

    `model` is "name", "name@version" or "name:alias" (empty: the only one loaded).

    `head` empty or "AUTO" chooses the cheapest operating point measured for as many rows that
    reaches `min_precision` at k, rounded up to 1, 5 or 10 (beyond 10 only by proof); that proves
    its answers (`exact`); or that is wrong with a chance of at most `max_error` a row. Without any
    of them it meets the build's target or, if that has none, a `max_error` of 1e-15. `knobs`
    override a head's stored ones, without a name the default head's; `max_error` is one of the head
    `sketch`: 0 (a proof) or more, below 1.

    `normalizer` is the method for log Z. None: `topk` computes none; the others choose one, which
    the answer names.

    `width`, 1e-9 to 100 nats, limits the proven interval of log Z: each log-probability is within
    it of the true one, before rounding to float32. It needs a proving `normalizer`; None chooses
    `sketch` if the index has it, else `full`.
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

    Without a head and a precision `sketch` draws within `max_error`, by default 1e-15, or `full`
    if the index lacks it or measured it to be slower. Above 0 log Z may be an estimate, which the
    answer names `approximate`: a `normalizer`, a `width`, `exact` or a `max_error` of 0 proves it.

    Filters, after the temperature: the `top_k` best ids (0: all), of those the smallest set with a
    probability of at least `top_p`, then ids at least `min_p` times as probable as the best.
    Temperature 0 answers the best id.

    A draw depends on its row's seed (uint64 [B]), `step` and its number among the row's draws. One
    number as `seeds` is spread: row r gets (seeds + r * 0x9E3779B97F4A7C15) mod 2^64. None draws
    fresh seeds. Equal arguments, version, head and knobs draw equal ids.

    `replace` False draws ids without replacement: `samples` different ones, in the order of
    logits / temperature plus Gumbel noise, which the reply has as `perturbed`. The first is the
    draw of that seed with replacement. Where filters or constraints leave fewer ids, the rest are
    -1, with -inf for their log-probabilities and perturbed logits.

    With `log_probs` False they, and log Z, may be absent (NaN and None): then draws by `full`
    and `sketch` take little more time than their best ids, and are as sure as these.
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
    """Keywords of `beam_step`: `ModelSpec`'s, and the state of the hypotheses, [B] each.

    `lengths` are in tokens (None: 0), `finished` None is false for all.
    """

    lengths: ArrayLike | None
    finished: ArrayLike | None
    eos_ids: Sequence[int]
    length_penalty: float


F = TypeVar("F", bound=Callable[..., Any])


def check_keywords(options: type, given: Mapping[str, Any]) -> None:
    """TypeError for a keyword that the TypedDict `options` lacks."""
    if not given.keys() <= options.__annotations__.keys():
        unknown = ", ".join(sorted(given.keys() - options.__annotations__.keys()))
        raise TypeError(
            f"unknown keyword: {unknown}; allowed: {', '.join(options.__annotations__)}"
        )


def shows_keywords(options: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Let help() list each keyword of `**kwargs: Unpack[options]`."""

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
    """A resolved spec: AUTO at a precision (None: the index's own target), or a point."""

    automatic: bool
    precision: float | None
    head: str
    knobs: KnobValues
    normalizer: str  # "" for none
    width: float = inf  # nats that the interval of log Z may span
    max_error: float | None = None  # of AUTO without a precision; None: as the index was built

    @classmethod
    def of(
        cls, head: str, knobs: KnobValues, precision: float | None, max_error: Any,
        normalizer: str, width: float,
    ) -> Self:  # fmt: skip
        """Make a request, AUTO's without a head and knobs; or InvalidRequest."""
        asked = asked_max_error(max_error, knobs, precision)
        if not head and not knobs:
            return cls(True, precision, "", (), normalizer, width, asked)
        added = () if asked is None else (("max_error", asked),)
        return cls(False, None, head, tuple(sorted(knobs + added)), normalizer, width)


def asked_precision(
    head: str, knobs: Mapping[str, float] | None, min_precision: float | None, exact: bool
) -> float | None:
    """Return the precision for AUTO (1: a proof, None: the index's target) or InvalidRequest."""
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
    """Return the largest chance of a wrong row that is asked for; or InvalidRequest."""
    if max_error is None:
        return None
    if precision is not None or "max_error" in dict(knobs):
        allowed = "none beside exact, min_precision or knobs.max_error"
        raise InvalidRequest("max_error", f"{max_error!r:.80}", allowed)
    return number("max_error", max_error, 0.0, BELOW_1)


def asked_width(width: float | None) -> float:
    """Return the nats that log Z's interval may span, infinity for None; or InvalidRequest."""
    return inf if width is None else number("width", width, NARROWEST, WIDEST)


DEFAULT_SPEC = ResolvedSpec(True, None, "", (), "")


def resolved_spec(spec: ModelSpec) -> ResolvedSpec:
    """Resolve the keywords of a request to a point; or InvalidRequest."""
    if spec.keys().isdisjoint(ModelSpec.__annotations__):
        return DEFAULT_SPEC
    head, knobs = spec.get("head", ""), spec.get("knobs")
    precision, exact = spec.get("min_precision"), spec.get("exact", False)
    log_z = spec.get("normalizer") or "", asked_width(spec.get("width"))
    asked = None
    if precision is not None or exact is not False or head == AUTO:
        asked, head, knobs = asked_precision(head, knobs, precision, exact), "", None
    return ResolvedSpec.of(head, knob_values(knobs), asked, spec.get("max_error"), *log_z)


def knob_values(knobs: Mapping[str, float] | None) -> KnobValues:
    """Sort knobs by name; InvalidRequest unless each is a number."""
    try:
        return tuple(sorted((str(name), float(value)) for name, value in (knobs or {}).items()))
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest("knobs", f"{knobs!r:.80}", "a number for each knob's name") from error
