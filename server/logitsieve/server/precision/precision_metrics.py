"""Live precision for Prometheus, and AUTO's moves by it. Used by the event loop alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from logitsieve.evaluation.operating_points import BEYOND, KS, k_class
from logitsieve.server.logs import event
from logitsieve.server.metrics import Counters
from logitsieve.server.models.routes import Version
from logitsieve.server.precision.drift_guard import Move
from logitsieve.server.precision.shadow import Judgement

log = logging.getLogger(__name__)

BY_HEAD = "model", "head"
BY_K = "model", "head", "k"


class PrecisionMetrics(Collector):
    """Counts judged rows and moves AUTO by them. Hits and misses are of ids, not of rows."""

    def __init__(
        self, registry: CollectorRegistry, versions: Callable[[], Iterable[Version]]
    ) -> None:
        self._versions = versions
        self._rows = Counters("shadow_rows", "Rows answered again exactly", *BY_HEAD)
        self._hits = Counters("shadow_hits", "True top-k ids that were answered", *BY_K)
        self._possible = Counters("shadow_possible", "True top-k ids that there were", *BY_K)
        self._missed_mass = Counters(
            "shadow_missed_mass", "Probability of the true top-k ids not answered", *BY_HEAD
        )
        self._lost = Counters("shadow_lost_rows", "Chosen rows not judged", "model", "reason")
        self._missed = Counters("auto_missed", "True ids that AUTO did not answer", "model", "k")
        self._allowed = Counters("auto_allowed", "True ids that AUTO may miss", "model", "k")
        self._trial_hits = Counters("trial_hits", "As shadow_hits, of points AUTO has left", *BY_K)
        self._trial_possible = Counters("trial_possible", "As shadow_possible, of those", *BY_K)
        self._moves = Counters("guard_moves", "Moves of AUTO between points", "model", "direction")
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        for series in vars(self).values():
            if isinstance(series, Counters):
                yield series.metric()
        names = "model", "version"
        level = GaugeMetricFamily(
            "logitsieve_guard_level", "Steps of AUTO to safer points", labels=names
        )
        target = GaugeMetricFamily(
            "logitsieve_target_precision", "What an index was built for", labels=(*names, "k")
        )
        failed = GaugeMetricFamily(
            "logitsieve_version_failed", "1 where the last load of a version failed", labels=names
        )
        for version in self._versions():
            labels = version.name, str(version.number)
            failed.add_metric(labels, float(bool(version.error)))
            if version.served is not None:
                level.add_metric(labels, version.served.downgrade_depth)
                for k, precision in version.served.decoder.auto.target.items():
                    target.add_metric((*labels, str(k)), precision)
        yield from (level, target, failed)

    def lost(self, model: str, reason: str) -> None:
        self._lost[model, reason] += 1

    def judged(self, judgement: Judgement) -> None:
        """Count a judged row, and let AUTO learn from it if AUTO chose the point that answered."""
        served, costed = judgement.row.served, judgement.row.costed
        model, head = costed.point.model, costed.point.head
        self._rows[model, head] += 1
        self._missed_mass[model, head] += judgement.missed_mass
        _count(self._hits, self._possible, model, head, judgement.hits)
        for point, hits in judgement.refuted:
            _count(self._trial_hits, self._trial_possible, model, point.head, hits)
        if costed.goal:
            for k, hit in judgement.hits.items():
                if (precision := costed.goal.get(k_class(k))) is not None:
                    labels = model, str(k_class(k))
                    self._missed[labels] += k - hit
                    self._allowed[labels] += k * (1 - precision)
            verdicts = [*judgement.refuted, (costed.point, judgement.hits)]
            for move in served.learn([(point, shares(hits)) for point, hits in verdicts]):
                self._moved(model, served.decoder.version, move)

    def _moved(self, model: str, version: str, move: Move) -> None:
        self._moves[model, "safer" if move.safer else "back"] += 1
        why = "its precision is below the one asked for" if move.safer else "it is precise again"
        points: dict[str, Any] = {"source": move.source, "destination": move.destination}
        point = move.source if move.safer else move.destination
        moves = f"AUTO moves from {move.source} to {move.destination}"
        message = f"{model}@{version}: {moves}, {point}: {why}"
        event(log, logging.WARNING, "guard", message, model=model, version=version, **points)


def shares(hits: Mapping[int, float]) -> dict[int, float]:
    """Class of k -> share of the true top-k answered; of two ks in a class the larger counts."""
    return {k_class(k): hits[k] / k for k in sorted(hits) if k_class(k) != BEYOND}


def _count(
    hit: Counters, possible: Counters, model: str, head: str, hits: Mapping[int, float]
) -> None:
    for k in KS:
        if k in hits:
            hit[model, head, str(k)] += hits[k]
            possible[model, head, str(k)] += k
