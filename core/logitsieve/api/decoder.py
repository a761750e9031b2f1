"""The one protocol that in-process and remote decoders share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import inf
from numbers import Real
from typing import Any, Literal, NamedTuple, Protocol, TypedDict, TypeVar, Unpack, get_args

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import (
    ArrayLike,
    BeamStepReply,
    SampleReply,
    ScoreReply,
    TopKReply,
)

AUTO = "AUTO"  # instead of a head's name: the cheapest operating point that is precise enough

NormalizerName = Literal["candidates", "lowrank", "sampled", "certified", "exact"]
KnobValues = tuple[tuple[str, float], ...]  # in order of their names

NARROWEST, WIDEST = 1e-9, 100.0  # nats that the interval of log Z may be limited to

# Codes of decoder.proto's Normalizer, in which the names stand in the same order.
NORMALIZER_CODES = {name: code for code, name in enumerate(get_args(NormalizerName), start=1)}


class Target(TypedDict, total=False):
    """Keywords of every method of a decoder: the index that answers a request, and the way.

    `model` is "name", "name@version" or "name:alias" (empty: the only one there is).

    `head` empty or "AUTO" is the cheapest measured operating point, for as many rows, whose
    P@k meets `min_precision`, k being rounded up to 1, 5 or 10, or that proves its answers, if
    `exact`; with neither, that meets the target that the index was built for, and without one the
    faster of the default head and the proving heads. Beyond k = 10 only a proof meets a
    `min_precision`. A head by name answers at its stored knobs, except those in `knobs`; so does
    the default head, if `knobs` come without a name. The answer names head and knobs.

    `normalizer` is the method for log Z. None: `topk` finds none; `score`, `beam_step` and `sample`
    choose one that fits the index and the head, and the answer names it.

    `width` is the number of nats, 1e-9 to 100, that the proven interval of log Z may span: each
    log-probability is within it of the true one, before it is rounded to float32. It is found by
    `normalizer`, which must be one that proves an interval; None: by `certified` where the index
    has it, else by `exact`. `width` None leaves the interval as wide as it is found.
    """

    model: str
    head: str
    knobs: Mapping[str, float] | None
    min_precision: float | None
    exact: bool
    normalizer: NormalizerName | None
    width: float | None


class SampleOptions(Target, total=False):
    """Keywords of `sample`: those of `Target`, and how to draw.

    Without a head and a precision the draws are proven: `certified` answers if the index has it and
    it was not measured slower than `exact`, else `exact`.

    After the temperature only the `top_k` best ids remain (0: all), of those the least set
    with a probability of at least `top_p`, and those at least `min_p` as probable as the best.
    Temperature 0 answers the best id.

    A draw depends on the row's own seed (uint64 [B]), on `step` and on its place among the row's
    draws: neither on the other rows, nor on how many draws follow. One number as `seeds` is spread
    over the rows, so that they draw independently: row r gets
    (seeds + r * 0x9E3779B97F4A7C15) mod 2^64. None draws fresh ones. Equal arguments, version, head
    and knobs draw equal ids.
    """

    seeds: ArrayLike | None
    step: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float


class BeamOptions(Target, total=False):
    """Keywords of `beam_step`: those of `Target`, and the state of the hypotheses, [B] each.

    A hypothesis has a length in tokens (None: 0) and may have finished (None: it has not). One
    that has continues as itself alone, with the first of `eos_ids`. Pairs are ranked by
    score / ((5 + length) / 6)^length_alpha.
    """

    lengths: ArrayLike | None
    finished: ArrayLike | None
    eos_ids: Sequence[int]
    length_alpha: float


# Every option's value where a request names none.
DEFAULTS: Mapping[str, Any] = {
    "model": "",
    "head": "",
    "knobs": None,
    "min_precision": None,
    "exact": False,
    "normalizer": None,
    "width": None,
    "seeds": None,
    "step": 0,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "lengths": None,
    "finished": None,
    "eos_ids": (),
    "length_alpha": 0.0,
}

F = TypeVar("F", bound=Callable[..., Any])


def check_keywords(options: type, given: Mapping[str, Any]) -> None:
    """TypeError for a keyword that the TypedDict `options` does not have."""
    if not given.keys() <= options.__annotations__.keys():
        unknown = ", ".join(sorted(given.keys() - options.__annotations__.keys()))
        raise TypeError(
            f"unknown keyword: {unknown}; allowed: {', '.join(options.__annotations__)}"
        )


def shows_keywords(options: type) -> Callable[[F], F]:
    """Decorate a method with `**kwargs: Unpack[options]`: help() and signature() list each one.

    The method itself is returned, with a `__signature__`: a call costs nothing more.
    """

    def decorate(method: F) -> F:
        signature = inspect.signature(method)
        shown = [each for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
        shown += [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=DEFAULTS[name],
                annotation=getattr(annotation, "__forward_arg__", annotation),
            )
            for name, annotation in options.__annotations__.items()
        ]
        method.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return method

    return decorate


class PointRequest(NamedTuple):
    """A target resolved: AUTO at a precision (None: the index's own target), or a point."""

    automatic: bool
    precision: float | None
    head: str
    knobs: KnobValues
    normalizer: str  # "" for none
    width: float = inf  # nats that the interval of log Z may span


class Decoder(Protocol):
    """Answers requests about the next tokens; B rows of hidden size D over V ids.

    Every method raises InvalidRequest naming the field at fault. Constraints say what may be
    answered; the answer is exact over what remains.
    """

    @shows_keywords(Target)
    def topk(
        self,
        hidden: ArrayLike,
        k: int,
        *,
        constraints: Constraints | None = None,
        **target: Unpack[Target],
    ) -> TopKReply:
        """The k best tokens of each row of `hidden` [B, D] or [D].

        log Z, with a `normalizer`, is that of all V logits, or of what the constraints leave.
        """
        ...

    @shows_keywords(Target)
    def score(
        self,
        hidden: ArrayLike,
        targets: ArrayLike,
        *,
        constraints: Constraints | None = None,
        **target: Unpack[Target],
    ) -> ScoreReply:
        """Log-probabilities of `targets`, ids [B, T] or [B], under what the constraints leave."""
        ...

    @shows_keywords(SampleOptions)
    def sample(
        self,
        hidden: ArrayLike,
        samples: int = 1,
        *,
        constraints: Constraints | None = None,
        **options: Unpack[SampleOptions],
    ) -> SampleReply:
        """`samples` independent draws for each row, from softmax(logits / temperature).

        The filters `top_k`, `top_p` and `min_p`, the seeds and the step: see `SampleOptions`.
        """
        ...

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
        """One step of a beam search: the `beams_out` best continuations of each group.

        `hidden` has G x `beams_in` rows, group by group, one a hypothesis, with its score so far
        (None: 0), its length in tokens (None: 0) and whether it has finished (None: it has not).
        A continuation's score is that of its hypothesis plus logit - log Z, log Z over all V ids
        whatever the constraints say; where they leave fewer than `beams_out` ids, it continues
        with those. A finished hypothesis continues as itself alone, with the first of `eos_ids`:
        its log Z is NaN in the answer, and its row of `hidden` only has to be finite.

        Ranked by score / ((5 + length) / 6)^length_alpha, equal ones by parent, then logit, then
        id. Where a proven interval of log Z leaves an order open, a closer one settles it.
        """
        ...


def asked_precision(
    head: str, knobs: Mapping[str, float] | None, min_precision: float | None, exact: bool
) -> float | None:
    """The precision that AUTO must reach: 1 for a proof, None for the index's own target.

    InvalidRequest names the field that contradicts another, or holds no such value.
    """
    if type(exact) is not bool:
        raise InvalidRequest("exact", repr(exact), "True or False")
    if min_precision is not None:
        number = type(min_precision) is float or (
            isinstance(min_precision, Real) and not isinstance(min_precision, bool)
        )
        if not number or not 0 < min_precision <= 1:
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


def asked_width(width: float | None) -> float:
    """The nats that the interval of log Z may span, infinity for None; InvalidRequest otherwise."""
    if width is None:
        return inf
    number = isinstance(width, Real) and not isinstance(width, bool)
    if not number or not NARROWEST <= width <= WIDEST:
        raise InvalidRequest("width", repr(width), f"a number, {NARROWEST:g} to {WIDEST:g}")
    return float(width)


DEFAULT_REQUEST = PointRequest(True, None, "", (), "")


def point_request(target: Target) -> PointRequest:
    """The point that the keywords of a request name; InvalidRequest names the one at fault."""
    if not target:
        return DEFAULT_REQUEST
    head, knobs = target.get("head", ""), target.get("knobs")
    precision, exact = target.get("min_precision"), target.get("exact", False)
    log_z = target.get("normalizer") or "", asked_width(target.get("width"))
    if precision is not None or exact is not False or head == AUTO:
        return PointRequest(True, asked_precision(head, knobs, precision, exact), "", (), *log_z)
    if head or knobs:
        return PointRequest(False, None, head, knob_values(knobs), *log_z)
    return PointRequest(True, None, "", (), *log_z)


def knob_values(knobs: Mapping[str, float] | None) -> KnobValues:
    """Knobs in order of their names; InvalidRequest unless each is a number."""
    try:
        return tuple(sorted((str(name), float(value)) for name, value in (knobs or {}).items()))
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidRequest("knobs", knobs, "a number for each knob's name") from error
