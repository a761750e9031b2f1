"""Live precision for Prometheus and AUTO, on the event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from logitsieve.evaluation.operating_points import BEYOND, KS, k_class
from logitsieve.server.logs import event
from logitsieve.server.metrics import Counters
from logitsieve.server.models.routes import Version
from logitsieve.server.precision.shadow import Judgement

log = logging.getLogger(__name__)

BY_HEAD = "model", "head"
BY_K = "model", "head", "k"


class PrecisionMetrics(Collector):
    """Counts judged rows, and ids that hit or missed."""

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
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        versions = list(self._versions())
        for series in vars(self).values():
            if isinstance(series, Counters):
                series.keep(versions)
                yield series.metric()
        names = "model", "version"
        family = partial(GaugeMetricFamily, labels=names)
        level = family("logitsieve_guard_level", "Points that AUTO has left by live precision")
        failed = family("logitsieve_version_failed", "1 where the last load of a version failed")
        target = GaugeMetricFamily(
            "logitsieve_target_precision", "What an index was built for", labels=(*names, "k")
        )
        for version in versions:
            labels = version.name, str(version.number)
            failed.add_metric(labels, float(bool(version.error)))
            if version.served is not None:
                level.add_metric(labels, len(version.served.left))
                for k, precision in version.served.decoder.auto.target.items():
                    target.add_metric((*labels, str(k)), precision)
        yield from (level, target, failed)

    def lost(self, model: str, reason: str) -> None:
        self._lost[model, reason] += 1

    def judged(self, judgement: Judgement) -> None:
        served, chosen = judgement.row.served, judgement.row.chosen
        model, head = chosen.engine.model, chosen.engine.head
        self._rows[model, head] += 1
        self._missed_mass[model, head] += judgement.missed_mass
        for k in KS:
            if k in judgement.hits:
                self._hits[model, head, str(k)] += judgement.hits[k]
                self._possible[model, head, str(k)] += k
        if not chosen.goal:
            return
        for k, hit in judgement.hits.items():
            if (precision := chosen.goal.get(k_class(k))) is not None:
                labels = model, str(k_class(k))
                self._missed[labels] += k - hit
                self._allowed[labels] += k * (1 - precision)
        if (point := served.learn(chosen, shares(judgement.hits))) is not None:
            version, label = served.decoder.version, point.label
            message = (
                f"{model}@{version}: AUTO leaves {label} for a proven point until the version is "
                "loaded again: its precision is below the one asked for"
            )
            event(log, logging.WARNING, "guard", message, model=model, version=version, point=label)


def shares(hits: Mapping[int, float]) -> dict[int, float]:
    """Return the share of the true top k answered by class of k, for its largest k."""
    return {k_class(k): hits[k] / k for k in sorted(hits) if k_class(k) != BEYOND}
