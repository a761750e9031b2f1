"""Measures live precision: answers a share of the TopK rows again, by the head `full`.

Rows without constraints are chosen with the same chance, even proven ones: otherwise a full queue
would drop only rows that may be wrong.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import inf, log, log1p
from queue import SimpleQueue
from random import Random
from threading import Event, Thread, get_native_id
from time import thread_time
from typing import NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from logitsieve.api.errors import Unavailable
from logitsieve.api.requests import TopKRequest
from logitsieve.api.results import TopK, TopKReply
from logitsieve.evaluation.operating_points import BEYOND, KS, k_class
from logitsieve.evaluation.precision import hits
from logitsieve.server.logs import event
from logitsieve.server.loops import call_soon
from logitsieve.server.metrics import Counters
from logitsieve.server.models.routes import Version
from logitsieve.server.models.served import EngineChoice, Served

logger = logging.getLogger(__name__)

QUEUE = 256
JOIN_S = 1.0
BY_HEAD = "model", "head"
BY_K = "model", "head", "k"
NICE = 10  # not the lowest priority: a thread that has the GIL must get time to release it


def step_back() -> None:
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, get_native_id(), NICE)


class AnsweredRow(NamedTuple):
    served: Served
    chosen: EngineChoice
    hidden_states: np.ndarray  # [1, D]
    answer: TopK


class Judgement(NamedTuple):
    row: AnsweredRow
    hits: Mapping[int, float]  # true ids that were answered, by k
    missed_mass: float  # probability of the other true ids


def judge(row: AnsweredRow) -> Judgement:
    """Compare an answer with that of `full`; a proven answer equals it."""
    decoder, hidden_states, answer = row.served.decoder, row.hidden_states, row.answer
    k = answer.ids.shape[1]
    truth = answer
    if not answer.proven[0]:
        reply = decoder.engine("full", (), "").answer(TopKRequest(hidden_states, k))
        if reply.answer.rows_missing:
            raise Unavailable("model: a shard does not answer", "model")
        truth = _top(reply)
    hits_by_k = _hits(answer, truth)
    missed = 0.0
    if hits_by_k[k] < k:
        best = decoder.engine("full", (), "full").answer(TopKRequest(hidden_states, 1))
        log_z = best.answer.log_z
        assert log_z is not None, "a normalizer was named"
        lost = truth.logits[0][~np.isin(truth.ids[0], answer.ids[0])]
        missed = float(np.exp(lost - float(log_z[0])).sum())
    return Judgement(row, hits_by_k, missed)


def _top(reply: TopKReply) -> TopK:
    answer = reply.answer
    return TopK(reply.ids, reply.logits, answer.proven, answer.scanned, answer.fallback)


def _hits(answer: TopK, truth: TopK) -> dict[int, float]:
    last = answer.ids.shape[1]
    hits_by_k = {}
    for k in (*(k for k in KS if k < last), last):
        first = answer._replace(ids=answer.ids[:, :k], logits=answer.logits[:, :k])
        hits_by_k[k] = float(hits(first, truth, k)[0])
    return hits_by_k


class Shadow:
    """Judges a `share` of the rows on a thread that takes at most `cpu` of a core; 0 is off.

    It calls `judged`, or `lost(model, reason)`, on the event loop.
    """

    def __init__(
        self,
        share: float,
        cpu: float,
        *,
        judged: Callable[[Judgement], None],
        lost: Callable[[str, str], None],
        seed: int | None = None,
        clock: Callable[[], float] = thread_time,
        stopping: Event | None = None,
    ) -> None:
        self._on = share > 0 and cpu > 0
        self._share = share
        self._rest = 1 / cpu - 1 if self._on else inf
        self._judged, self._lost = judged, lost
        self._random = Random(seed)
        self._queue: SimpleQueue[AnsweredRow | None] = SimpleQueue()
        self._clock, self._stopping = clock, stopping or Event()
        self._thread: Thread | None = None
        self._gap = self._draw()

    def start(self) -> None:
        if self._on:
            loop = (asyncio.get_running_loop(),)
            self._thread = Thread(None, self._run, "logitsieve-shadow", loop, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def offer(
        self, served: Served, chosen: EngineChoice, hidden_states: np.ndarray, reply: TopKReply
    ) -> None:
        if reply.answer.rows_missing:
            return
        while self._gap < len(hidden_states):
            row = int(self._gap)
            one = slice(row, row + 1)
            if self._queue.qsize() >= QUEUE:
                self._lost(reply.answer.model, "queue_full")
            else:
                answer = TopK._make(array[one].copy() for array in _top(reply))
                self._queue.put(AnsweredRow(served, chosen, hidden_states[one].copy(), answer))
            self._gap = row + 1 + int(self._draw())
        self._gap -= len(hidden_states)

    def _draw(self) -> float:
        if not self._on:
            return inf
        return 0 if self._share == 1 else log(1 - self._random.random()) // log1p(-self._share)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        step_back()
        while (row := self._queue.get()) is not None and not self._stopping.is_set():
            began = self._clock()
            report = self._report(row)
            if self._stopping.wait((self._clock() - began) * self._rest):
                return
            call_soon(loop, report)
            del row, report  # or they would keep an unloaded index mapped

    def _report(self, row: AnsweredRow) -> Callable[[], None]:
        try:
            with row.served.leases:
                judgement = judge(row)
        except Unavailable:
            return lambda: self._lost(row.chosen.engine.model, "unloaded")
        except Exception:
            logger.exception("a row of %s was not judged", row.chosen.engine.model)
            return lambda: self._lost(row.chosen.engine.model, "failed")
        return lambda: self._judged(judgement)


class PrecisionMetrics(Collector):
    """Counts judged rows, and tells AUTO. For the event loop alone."""

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
        about = "Chosen rows not judged: queue_full, unloaded, failed"
        self._lost = Counters("shadow_lost_rows", about, "model", "reason")
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
        level = family(
            "logitsieve_auto_disabled_points", "Points that AUTO has left by live precision"
        )
        failed = family("logitsieve_version_failed", "1 where the last load of a version failed")
        target = GaugeMetricFamily(
            "logitsieve_target_precision_ratio", "What an index was built for", labels=(*names, "k")
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
            event(
                logger, logging.WARNING, "guard", message, model=model, version=version, point=label
            )


def shares(hits: Mapping[int, float]) -> dict[int, float]:
    """Return the answered share of the true top k by class of k, for the largest k in it."""
    return {k_class(k): hits[k] / k for k in sorted(hits) if k_class(k) != BEYOND}
