"""What a call costs on S nodes, computed from costs that were measured on one machine.

    latency(V, S) = client + floors + (S - 1) * send + compute(V) / S + network
    calls a second of a core of an ingress = 1 / (own + floors + S * send)
    calls a second of a thread of a replica = 1 / (answer + compute(V) / S)

The measured parts are CPU times of processes, which do not depend on how many of them share the
machine that they were measured on.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.scale.sizes import REPLICATED


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Microseconds of one call of one row, and bytes."""

    client: float  # from the client's call to its answer over one shard, less the computations
    own: float  # of the ingress's CPU for each call, less the search of replicated rows
    floors: float  # of this search, of `replicated_rows`
    send: float  # of the ingress's CPU for each shard that is asked
    answer: float  # of a replica's CPU for each call, less the computation
    wire_bytes: float  # from and to one shard
    rows: Sequence[float]  # V that were measured
    compute: Sequence[float]  # of `certified` over so many rows, on one thread
    row_bytes: float  # of a replica's memory
    bounds_bytes: float  # of an ingress's memory, for each row that is not replicated
    replicated_bytes: float  # of that, for those that are
    replicated_rows: int
    # Assumed:
    network: float = 100.0  # there and back between two nodes of a data centre
    wire_bytes_per_us: float = 1250.0  # 10 Gbit/s

    def computed(self, words: float, shards: int) -> float:
        """Time of a shard: its part of that over so many rows, as no shard has to find its best.

        Between what was measured a line in logarithms, beyond in proportion to V.
        """
        if words >= self.rows[-1]:
            whole = self.compute[-1] * words / self.rows[-1]
        else:
            whole = float(np.exp(np.interp(np.log(words), np.log(self.rows), np.log(self.compute))))
        return whole / shards

    def latency(self, words: float, shards: int) -> float:
        """Microseconds of a call over V rows in so many shards, each on a node of its own."""
        wire = self.network + shards * self.wire_bytes / self.wire_bytes_per_us
        sent = self.client + self.floors + (shards - 1) * self.send
        return sent + self.computed(words, shards) + wire

    def ingress_per_s(self, shards: int) -> float:
        """Calls a second that one core of an ingress sends and merges."""
        return 1e6 / (self.own + self.floors + shards * self.send)

    def replica_per_s(self, words: float, shards: int) -> float:
        """Calls a second that one thread of a replica answers."""
        return 1e6 / (self.answer + self.computed(words, shards))


def costs_of(results: dict[str, Any]) -> Costs:
    """The costs that follow from what was measured (results/scale.json.gz)."""
    times = results["times"]
    rows = sorted(map(int, times))
    compute = [times[str(words)]["certified"]["median"] for words in rows]
    small = {s: own[REPLICATED] for s, own in results["called"][str(rows[0])].items()}
    sizes = results["sizes"][str(rows[-1])]
    floors = [times[str(words)][REPLICATED]["median"] for words in (rows[0], rows[-1])]
    shards = sorted(map(int, small))
    send, own = np.polyfit(shards, [small[str(s)]["ingress_cpu_us"] for s in shards], 1)
    replicas = [small[str(s)]["replica_cpu_us"] - compute[0] / s for s in shards]
    messages = results["wire"]["1"]["topk"]
    return Costs(
        client=small[str(shards[0])]["p50"] - compute[0] - floors[0],
        own=float(own) - floors[0],
        floors=floors[1],
        send=float(send),
        answer=statistics.median(replicas),
        wire_bytes=messages["asked"] + messages["answered"],
        rows=rows,
        compute=compute,
        row_bytes=(sizes["softmax"] + sizes["sketch"]) / rows[-1],
        bounds_bytes=sizes["bounds"] / (rows[-1] - sizes["replicated_rows"]),
        replicated_bytes=sizes["replicated"],
        replicated_rows=sizes["replicated_rows"],
    )
