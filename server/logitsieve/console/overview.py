from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from logitsieve.api.keywords import DEFAULT_SPEC, asked_max_error, asked_precision
from logitsieve.console.answers import Facts, kept_count
from logitsieve.decoding import LocalDecoder, measured_elsewhere
from logitsieve.evaluation import OperatingPoint
from logitsieve.evaluation.operating_points import KS, k_class
from logitsieve.evaluation.precision import wilson
from logitsieve.heads._base.head import checked_k
from logitsieve.index import Index
from logitsieve.index.manifest import is_version
from logitsieve.server.models.routes import Routes, Version
from logitsieve.server.models.served import Served
from logitsieve.version import __version__


def overview_facts(
    routes: Routes, registry: CollectorRegistry, ready: bool, unloaded: list[str]
) -> Facts:
    return {
        "version": __version__,
        "ready": ready,
        "models": [_version_facts(routes, version) for version in routes.by_key.values()],
        "unloaded": unloaded,
        "live": live_facts(registry),
    }


def unloaded_versions(models: Path, routes: Routes) -> list[str]:
    labels = [f"{path.parent.name}@{path.name}" for path in sorted(models.glob("[a-z0-9]*/[1-9]*"))]
    loaded = {version.label for version in routes.by_key.values()}
    return [label for label in labels if label not in loaded and is_version(label.split("@")[1])]


def model_facts(index: Index) -> Facts:
    return {
        "model": f"{index.name}@{index.version}",
        "digest": index.digest,
        "device": index.device,
        "vocab_size": index.vocab_size,
        "dim": index.dim,
        "dtype": index.manifest.dtype,
        "files": [{"file": each.file, "bytes": each.size} for each in index.manifest.files()],
        "default_head": index.default_head,
        "has_words": index.manifest.vocabulary is not None,
        "contexts": kept_count(index),
        "calibrated": index.calibration is not None,
        "heads": [_head_facts(index, name) for name in index.heads],
    }


def _head_facts(index: Index, name: str) -> Facts:
    head = index.head(name)
    table = head.knob_table.items()
    knobs = [{"name": knob, "value": head.knobs[knob], **vars(about)} for knob, about in table]
    return {"name": name, "knobs": knobs}


def _version_facts(routes: Routes, version: Version) -> Facts:
    facts: Facts = {
        "model": version.label,
        "name": version.name,
        "number": version.number,
        "state": version.state,
        "error": version.error,
        "aliases": routes.aliases_of(version),
        "plain": routes.get(version.name) == version,
    }
    if version.served is not None:
        decoder = version.served.decoder
        if isinstance(decoder, LocalDecoder):
            with version.served.leases:
                facts |= model_facts(decoder.index) | _auto_facts(version.served)
    return facts


def _auto_facts(served: Served) -> Facts:
    auto = served.decoder.auto
    taken = []
    for batch in auto.batches:
        point = served.choose(DEFAULT_SPEC, batch, 1).engine
        taken.append({"rows": batch, "head": point.head, "knobs": point.knobs})
    return {"target": dict(auto.target), "auto": taken, "auto_disabled_points": len(served.left)}


def live_facts(registry: CollectorRegistry) -> Facts:
    families = {metric.name: metric for metric in registry.collect()}

    def series(name: str, suffix: str = "") -> list[tuple[Mapping[str, str], float]]:
        family: Metric | None = families.get(f"logitsieve_{name}")
        samples = [] if family is None else family.samples
        return [(s.labels, s.value) for s in samples if s.name == f"logitsieve_{name}{suffix}"]

    calls: defaultdict[tuple[str, str, str, str], float] = defaultdict(float)
    for labels, count in series("requests", "_total"):
        calls[labels["rpc"], labels["model"], labels["version"], labels["code"]] += count
    names = "rpc", "model", "version", "code"
    return {
        "calls": [dict(zip(names, key, strict=True)) | {"count": n} for key, n in calls.items()],
        "rows": [{**labels, "count": count} for labels, count in series("rows", "_total")],
        "queue_rows": sum(value for _, value in series("queue_rows")),
        "seconds": _buckets(series("request_duration_seconds", "_bucket")),
        "rejected": [
            {**labels, "count": count} for labels, count in series("requests_rejected", "_total")
        ],
        "precision": _precision(
            series("shadow_hits", "_total"), series("shadow_possible", "_total")
        ),
        "memory": [
            {"device": labels["device"], "used": used}
            for labels, used in series("device_memory_used_bytes")
        ],
    }


def _buckets(samples: list[tuple[Mapping[str, str], float]]) -> list[list[Any]]:
    """Return [upper bound in seconds or None, calls up to it], summed over methods and models."""
    counts: defaultdict[str, float] = defaultdict(float)
    for labels, count in samples:
        counts[labels["le"]] += count
    bounds = sorted(counts, key=float)
    return [[None if le == "+Inf" else float(le), counts[le]] for le in bounds]


def _precision(
    hits: list[tuple[Mapping[str, str], float]], possible: list[tuple[Mapping[str, str], float]]
) -> list[Facts]:
    of = {tuple(sorted(labels.items())): count for labels, count in possible}
    return [
        {**labels, **_judged(count, of[tuple(sorted(labels.items()))])} for labels, count in hits
    ]


def _judged(hits: float, possible: float) -> Facts:
    """Return the counts, with lower and upper bounds of the precision, each at 95 % confidence."""
    low, high = 0.0, 1.0
    if possible:
        missed = (possible - hits) / possible
        low, high = wilson(1 - missed, int(possible)), 1 - wilson(missed, int(possible))
    return {"hits": hits, "possible": possible, "low": low, "high": high}


def points_facts(decoder: LocalDecoder) -> Facts:

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
        "points": [
            {"label": point.label, "proven": point.proven, **vars(point)} for point in auto.points
        ],
        "frontier": {
            batch: {k: frontier(auto.points, batch, k) for k in KS}
            for batch in (auto.batches if auto.points else ())
        },
    }


def chosen_facts(
    decoder: LocalDecoder, precision: float | None, k: int, max_error: float | None = None
) -> Facts:
    """Return AUTO's point at each batch size; by default, the points for the index's target.

    InvalidRequest names `min_precision`, `max_error` or `k`.
    """
    k = checked_k(k, decoder.index.vocab_size)
    asked = asked_precision("", None, precision, False)
    max_error = asked_max_error(max_error, precision=asked)
    chosen = decoder.auto.choices(asked, [decoder.auto.k_class(k, asked)], max_error)
    for one in chosen:
        one["low"] = (one["precision_low"] or {}).get(k_class(k))
    return {"min_precision": precision, "max_error": max_error, "k": k, "chosen": chosen}


def frontier(points: Sequence[OperatingPoint], batch: int, k: int) -> list[int]:
    """Return the indices of the points on the frontier of time and bound of P@k, fastest first."""
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
