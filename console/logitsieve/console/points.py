"""An index's operating points: measurements, the frontier, AUTO's choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from logitsieve.api.keywords import asked_precision
from logitsieve.console.answers import Facts
from logitsieve.decoding import LocalDecoder, measured_elsewhere
from logitsieve.evaluation import OperatingPoint
from logitsieve.evaluation.operating_points import KS, k_class
from logitsieve.heads._base.head import checked_k


def points_facts(decoder: LocalDecoder) -> Facts:
    """Return every measured point."""
    index, auto = decoder.index, decoder.auto
    measured = index.measured
    return {
        "model": f"{index.name}@{index.version}",
        "target": dict(auto.target),
        "batches": list(auto.batches) if auto.points else [],
        "ks": list(KS),
        "heldout_rows": None if measured is None else measured["heldout_rows"],
        "uneven": [] if measured is None else _uneven(measured["points"]),
        "machine": {} if measured is None else dict(measured["machine"]),
        "elsewhere": measured_elsewhere(index),
        "points": [{"label": point.label, **vars(point)} for point in auto.points],
        "frontier": {
            batch: {k: frontier(auto.points, batch, k) for k in KS}
            for batch in (auto.batches if auto.points else ())
        },
    }


def chosen_facts(decoder: LocalDecoder, precision: float | None, k: int) -> Facts:
    """Return AUTO's point at each batch size; `precision` None is the index's target.

    InvalidRequest names `min_precision` or `k`.
    """
    k = checked_k(k, decoder.index.vocab_size)
    asked = asked_precision("", None, precision, False)
    chosen = decoder.auto.choices(asked, [decoder.auto.k_class(k, asked)])
    for one in chosen:
        one["low"] = (one["precision_low"] or {}).get(k_class(k))
    return {"min_precision": precision, "k": k, "chosen": chosen}


def frontier(points: Sequence[OperatingPoint], batch: int, k: int) -> list[int]:
    """Return the places of points unbeaten in time and lower bound of P@k; fastest first."""
    timed = [place for place, point in enumerate(points) if batch in point.us_per_row]
    timed.sort(key=lambda place: (points[place].us_per_row[batch], -_low(points[place], k)))
    best: list[int] = []
    for place in timed:
        if not best or _low(points[place], k) > _low(points[best[-1]], k):
            best.append(place)
    return best


def _uneven(points: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(point["head"]["name"] for point in points if point["uneven"]))


def _low(point: OperatingPoint, k: int) -> float:
    return 1.0 if point.proven else point.low.get(k, 0.0)
