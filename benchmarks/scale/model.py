"""What a call costs on S nodes, computed from costs that were measured on one machine.

    latency(V, S) = client + (S - 1) * send + compute(V / S) + network
    calls a second of a core of an ingress = 1 / (own + S * send)
    calls a second of a thread of a replica = 1 / (answer + compute(V / S))

The measured parts are CPU times of processes, which do not depend on how many of them share the
machine that they were measured on.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Microseconds of one call of one row, and bytes."""

    client: float  # from the client's call to its answer over one shard, less the computation
    own: float  # of the ingress's CPU for each call
    send: float  # of the ingress's CPU for each shard that is asked
    answer: float  # of a replica's CPU for each call, less the computation
    wire_bytes: float  # from and to one shard
    rows: Sequence[float]  # V that were measured
    compute: Sequence[float]  # of `certified` over so many rows, on one thread
    row_bytes: float  # of a replica's memory
    beside_bytes: float  # of an ingress's memory, for each row of W
    # Assumed:
    network: float = 100.0  # there and back between two nodes of a data centre
    wire_bytes_per_us: float = 1250.0  # 10 Gbit/s

    def computed(self, rows: float) -> float:
        """Time over so many rows: a line in logarithms between what was measured, V beyond."""
        if rows >= self.rows[-1]:
            return self.compute[-1] * rows / self.rows[-1]
        return float(np.exp(np.interp(np.log(rows), np.log(self.rows), np.log(self.compute))))

    def latency(self, words: float, shards: int) -> float:
        """Microseconds of a call over V rows in so many shards, each on a node of its own."""
        wire = self.network + shards * self.wire_bytes / self.wire_bytes_per_us
        return self.client + (shards - 1) * self.send + self.computed(words / shards) + wire

    def ingress_per_s(self, shards: int) -> float:
        """Calls a second that one core of an ingress sends and merges."""
        return 1e6 / (self.own + shards * self.send)

    def replica_per_s(self, words: float, shards: int) -> float:
        """Calls a second that one thread of a replica answers."""
        return 1e6 / (self.answer + self.computed(words / shards))


def costs_of(results: dict[str, Any]) -> Costs:
    """The costs that follow from what was measured (results/scale.json.gz)."""
    times, called = results["times"], results["called"]
    rows = sorted(map(int, times))
    compute = [times[str(words)]["certified"]["median"] for words in rows]
    small, sizes = called[str(rows[0])], results["sizes"][str(rows[-1])]
    shards = sorted(map(int, small))
    send, own = np.polyfit(shards, [small[str(s)]["ingress_cpu_us"] for s in shards], 1)
    replicas = [
        small[str(s)]["replica_cpu_us"] - times[str(rows[0])][f"certified, S = {s}"]["median"] / s
        for s in shards
    ]
    messages = results["wire"]["1"]["topk"]
    return Costs(
        client=small[str(shards[0])]["p50"] - compute[0],
        own=float(own),
        send=float(send),
        answer=statistics.median(replicas),
        wire_bytes=messages["asked"] + messages["answered"],
        rows=rows,
        compute=compute,
        row_bytes=(sizes["softmax"] + sizes["sketch"]) / rows[-1],
        beside_bytes=sizes["bounds"] / rows[-1],
    )
