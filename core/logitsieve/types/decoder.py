"""The one protocol that in-process and remote decoders share."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Literal, Protocol

from logitsieve.types.errors import InvalidRequest
from logitsieve.types.results import ArrayLike, TopKReply

AUTO = "AUTO"  # instead of a head's name: the cheapest operating point that is precise enough

NormalizerName = Literal["candidates", "exact"]

# Codes of decoder.proto's Normalizer; a test compares them. Not all of them are built.
NORMALIZER_CODES = {"candidates": 1, "lowrank": 2, "sampled": 3, "certified": 4, "exact": 5}


class Decoder(Protocol):
    """Answers requests about the next tokens; B rows of hidden size D."""

    def topk(
        self,
        hidden: ArrayLike,
        k: int,
        *,
        model: str = "",
        head: str = "",
        knobs: Mapping[str, float] | None = None,
        min_precision: float | None = None,
        exact: bool = False,
        normalizer: NormalizerName | None = None,
    ) -> TopKReply:
        """The k best tokens of each row of `hidden` [B, D] or [D].

        `model` is "name", "name@version" or "name:alias" (empty: the only one there is).

        `head` empty or "AUTO" is the cheapest measured operating point, for as many rows, whose
        P@k meets `min_precision`, k being rounded up to 1, 5 or 10, or that proves its answers, if
        `exact`; with neither, that meets the target that the index was built for, and without one
        the index's default head. Beyond k = 10 only a proof meets a `min_precision`. A head by name
        answers at its stored knobs, but for those in `knobs`; so does the default head, where
        `knobs` come without a name. The answer names head and knobs.

        `normalizer` adds log Z to the answer. Raises InvalidRequest naming the field at fault.
        """
        ...


def asked_precision(
    head: str, knobs: Mapping[str, float] | None, min_precision: float | None, exact: bool
) -> float | None:
    """What AUTO is asked for: a precision, 1 for a proof, None for the index's own target.

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
