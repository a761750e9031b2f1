"""A discrete-event simulation of calls over shards, with slow replicas and a lost node.

A call takes time of an ingress's cores, is sent to all shards, and is answered when the last of
them has answered. A replica computes one call at a time; a call goes to the shorter queue of two
replicas drawn at random, as Ray Serve chooses. Now and then a pause (of a garbage collector, a
neighbour, the kernel) takes a replica's time as a call does, but longer.

A lost node has one replica, whose calls fail. They are made again after `again_s`, by another
replica where the shard has one. Where it has none the first call waits for `patience_s`, and until
the node is back the others are answered without the shard at once.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from benchmarks.scale.model import Costs

WORDS = 10**9
SHARDS = (1, 4, 10, 20, 50, 100)
REPLICAS = (1, 2)
LOAD = 0.5  # of what one replica of each shard can answer
CALLS = 20_000  # fewer over many shards
LOST_S = (20.0, 50.0)  # a node is lost, and its replica answers again
WINDOW_S = 1.0
PERCENTILES = (50, 99, 99.9)

Steps = Generator[Any, Any, Any]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Numbers of processes, and times in seconds."""

    shards: int
    replicas: int
    ingress_cores: int
    send_s: float  # of an ingress's core for a call, to all its shards
    service_s: float  # of a replica for a call, the mean
    network_s: float
    spread: float = 0.2  # of the logarithm of a service time
    pauses_per_s: float = 0.1  # of a replica
    pause_s: float = 0.05  # the mean
    patience_s: float = 1.0
    again_s: float = 0.02  # before a failed call is made again, as logitsieve.ray does


class Replica:
    """One process of a shard."""

    def __init__(self, env: simpy.Environment) -> None:
        self.core, self.lost = simpy.Resource(env), False

    @property
    def queue(self) -> int:
        return self.core.count + len(self.core.queue)


class Simulation:
    """`calls` calls, which arrive at random, `calls_per_s` on average.

    The first replica of the first shard is lost between the two times of `lost_s`, if there are.
    """

    def __init__(
        self,
        cluster: Cluster,
        calls: int,
        calls_per_s: float,
        lost_s: tuple[float, float] | None = None,
        seed: int = 0,
    ) -> None:
        self.began, self.seconds = np.zeros(calls), np.zeros(calls)
        self.whole = np.ones(calls, np.bool_)  # answered by every shard
        self._cluster, self._random = cluster, np.random.default_rng(seed)
        self._env = env = simpy.Environment()
        self._ingress = simpy.Resource(env, cluster.ingress_cores)
        self._shards = [
            [Replica(env) for _ in range(cluster.replicas)] for _ in range(cluster.shards)
        ]
        self._silent = False  # a call has waited for the first shard in vain
        for replica in (replica for shard in self._shards for replica in shard):
            env.process(self._pauses(replica))
        if lost_s is not None:
            env.process(self._lose(*lost_s))
        env.run(until=env.process(self._arrive(calls, calls_per_s)))

    def _arrive(self, calls: int, calls_per_s: float) -> Steps:
        begun = []
        for number, gap in enumerate(self._random.exponential(1 / calls_per_s, calls)):
            yield self._env.timeout(gap)
            begun.append(self._env.process(self._call(number)))
        yield self._env.all_of(begun)

    def _call(self, number: int) -> Steps:
        env, cluster = self._env, self._cluster
        self.began[number] = env.now
        with self._ingress.request() as core:
            yield core
            yield env.timeout(cluster.send_s)
        asked = yield env.all_of([env.process(self._ask(shard)) for shard in self._shards])
        yield env.timeout(cluster.network_s)
        self.seconds[number] = env.now - self.began[number]
        self.whole[number] = all(asked.values())

    def _ask(self, shard: list[Replica]) -> Steps:
        """Whether a replica answered."""
        env, cluster = self._env, self._cluster
        while True:
            drawn = self._random.permutation(len(shard))[:2]
            replica = min((shard[place] for place in drawn), key=lambda one: one.queue)
            if not replica.lost:
                with replica.core.request() as core:
                    yield core
                    yield env.timeout(self._service())
            if not replica.lost:
                return True
            if all(one.lost for one in shard):
                if not self._silent:
                    yield env.timeout(cluster.patience_s)
                    self._silent = True
                return False
            yield env.timeout(cluster.again_s)

    def _service(self) -> float:
        spread = self._cluster.spread
        return self._cluster.service_s * float(
            np.exp(spread * self._random.standard_normal() - spread**2 / 2)
        )

    def _pauses(self, replica: Replica) -> Steps:
        cluster = self._cluster
        while True:
            yield self._env.timeout(self._random.exponential(1 / cluster.pauses_per_s))
            with replica.core.request() as core:
                yield core
                yield self._env.timeout(self._random.exponential(cluster.pause_s))

    def _lose(self, start_s: float, end_s: float) -> Steps:
        replica = self._shards[0][0]
        yield self._env.timeout(start_s)
        replica.lost = True
        yield self._env.timeout(end_s - start_s)
        replica.lost = self._silent = False


def simulated(
    costs: Costs,
    shards: Sequence[int] = SHARDS,
    calls: int = CALLS,
    lost_s: tuple[float, float] = LOST_S,
) -> dict[str, Any]:
    """Latencies by the number of shards of 10^9 rows, and around the loss of one of the nodes."""
    tail = []
    for number in shards:
        for replicas in REPLICAS:
            cluster, rate = cluster_of(costs, WORDS, number, replicas)
            seconds = Simulation(cluster, calls // max(1, number // 10), rate).seconds
            percentiles = {f"p{p:g}": float(np.percentile(seconds, p)) for p in PERCENTILES}
            numbers = {"shards": number, "replicas": replicas, "calls_per_s": rate}
            tail.append(numbers | percentiles)
    lost = {}
    for replicas in REPLICAS:
        cluster, rate = cluster_of(costs, WORDS, shards[-1], replicas)
        lost[str(replicas)] = windows(Simulation(cluster, int(rate * sum(lost_s)), rate, lost_s))
    return {"words": WORDS, "tail": tail, "lost_s": lost_s, "lost": lost}


def cluster_of(costs: Costs, words: int, shards: int, replicas: int) -> tuple[Cluster, float]:
    """Nodes for so many rows, with ingresses for twice the calls a second that come in."""
    rate = LOAD * costs.replica_per_s(words, shards)
    cluster = Cluster(
        shards=shards,
        replicas=replicas,
        ingress_cores=max(1, math.ceil(2 * rate / costs.ingress_per_s(shards))),
        send_s=1 / costs.ingress_per_s(shards),
        service_s=1 / costs.replica_per_s(words, shards),
        network_s=costs.network / 1e6,
    )
    return cluster, rate


def windows(simulation: Simulation) -> list[dict[str, float]]:
    """Of the calls that came within each second: latencies, and the share of whole answers."""
    found, place = [], (simulation.began // WINDOW_S).astype(int)
    for number in range(place.max()):
        inside = place == number
        if inside.any():
            seconds = simulation.seconds[inside]
            found.append({
                "second": number * WINDOW_S,
                "p50": float(np.percentile(seconds, 50)),
                "p99": float(np.percentile(seconds, 99)),
                "whole": float(simulation.whole[inside].mean()),
            })  # fmt: skip
    return found
