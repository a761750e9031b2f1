"""What a call costs by V and S: measured, computed by the model, and simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.scale.model import Costs, costs_of
from benchmarks.scale.sizes import REPLICATED, SHARDED, SHARDS
from benchmarks.tables.figures import ABSENT, digits, markdown
from benchmarks.tables.results import load

HEADS = ("exact", "certified", "screen")
CALLED = ("p50", "p99", "ingress_cpu_us", "replica_cpu_us")
BESIDE = {SHARDED: "nothing", REPLICATED: "V / 20 rows of W"}
KEPT = {"bounds": "sketches", REPLICATED: "sketches and V / 20 rows of W"}
MODEL = ((10**6, 1), (10**6, 4), (10**7, 4), (10**8, 10), (10**8, 100), (10**9, 100))
OPERATIONS = {"topk": "`topk`, k = 5", "sample": "`sample`, one draw", "beam_step": "`beam_step`"}


def times() -> str:
    """Of heads in process, of the whole and over shards."""
    rows = []
    for words, found in load("scale")["times"].items():
        cells = [f"{int(words):,}", *(digits(found[name]["median"]) for name in HEADS)]
        for kind, label in BESIDE.items():
            own = [digits(found[f"{kind}, S = {shards}"]["median"]) for shards in SHARDS]
            rows.append([*cells, label, *own])
            cells = [ABSENT] * len(cells)
    head = ["rows of W", *(f"`{name}`" for name in HEADS), "beside the shards"]
    return markdown([*head, *(f"`certified`, S = {shards}" for shards in SHARDS)], rows)


def called() -> str:
    """Of calls over shards on Ray."""
    rows = []
    for words, found in load("scale")["called"].items():
        label = f"{int(words):,}"
        for shards, own in found.items():
            for kind, beside in BESIDE.items():
                cells = [label, shards if kind == SHARDED else ABSENT, beside]
                us = (own[kind][name] for name in CALLED)
                rows.append([*cells, *(digits(value / 1000) for value in us)])
                label = ABSENT
    head = ["rows of W", "shards", "beside the shards", "p50 ms", "p99 ms", "CPU of the ingress"]
    return markdown([*head, "of each replica"], rows)


def wire() -> str:
    """Bytes between an ingress and a shard."""
    found = load("scale")["wire"]
    rows = []
    for name, label in OPERATIONS.items():
        cells = [label, digits(found["1"][name]["calls"], 2)]
        for one in (found[count][name] for count in found):
            cells += [digits(one["asked"]), digits(one["answered"])]
        rows.append(cells)
    head = ["", "calls of a shard"]
    for count in found:
        unit = "1 row a call" if count == "1" else f"a row, {count} rows a call"
        head += [f"bytes there, {unit}", "back"]
    return markdown(head, rows)


def lost() -> str:
    """Answers without a shard."""
    found, rows = load("scale")["lost"], []
    for kept, label in KEPT.items():
        for one in found[kept]:
            shares = [f"{one[name] / one['answers']:.1%}" for name in ("proven", "no_row_lost")]
            count = f"{one['answers']:,}"
            rows.append([label, str(one["shard"]), count, shares[0], f"{one['wrong']}", shares[1]])
            label = ABSENT
    head = ["beside the shards", "lost", "contexts", "proven", "wrong of these"]
    return markdown([*head, "no row of it among the best five"], rows)


def model() -> str:
    """What the model says of larger softmaxes."""
    costs, rows = costs_of(load("scale")), []
    for words, shards in MODEL:
        rows.append(
            [
                f"{words:,}",
                str(shards),
                size(costs.row_bytes * words / shards),
                size(costs.replicated_bytes),
                size(costs.bounds_bytes * (words - costs.replicated_rows)),
                digits(costs.latency(words, shards) / 1000),
                digits(costs.replica_per_s(words, shards)),
                digits(costs.ingress_per_s(shards)),
            ]
        )
    head = ["rows of W", "shards", "memory of a replica", "of an ingress", "more with `--bounds`"]
    each = "calls a second of a thread of a replica"
    return markdown([*head, "ms of a call", each, "of an ingress"], rows)


def simulated() -> str:
    """Percentiles by the number of shards."""
    found = load("scale")["simulated"]
    rows = [
        [
            str(one["shards"]),
            str(one["replicas"]),
            digits(one["calls_per_s"]),
            *(digits(1000 * one[name]) for name in ("p50", "p99", "p99.9")),
        ]
        for one in found["tail"]
    ]
    head = ["shards", "replicas", "calls a second", "p50 ms", "p99 ms", "p99.9 ms"]
    return markdown(head, rows)


def size(count: float) -> str:
    """Bytes as MB or GB."""
    return f"{digits(count / 1e9)} GB" if count >= 1e9 else f"{digits(count / 1e6)} MB"


def costs() -> str:
    """The measured numbers that the model is made of."""
    own: Costs = costs_of(load("scale"))
    beside = f"{own.replicated_rows:,} rows beside the shards"
    named: dict[str, Any] = {
        "a call over one shard, less all computation": f"{digits(own.client / 1000)} ms",
        "CPU of the ingress for a call": f"{digits(own.own / 1000)} ms",
        f"for the best of {beside}": f"{digits(own.floors / 1000)} ms",
        "and for each shard": f"{digits(own.send / 1000)} ms",
        "CPU of a replica for a call, less the computation": f"{digits(own.answer / 1000)} ms",
        "bytes from and to a shard": f"{own.wire_bytes:,.0f}",
        "memory of a replica for a row of W, D = 200": f"{own.row_bytes:,.0f} bytes",
        f"of an ingress for {beside}": size(own.replicated_bytes),
        "and for each other row, with `--bounds`": f"{own.bounds_bytes:,.0f} bytes",
    }
    return markdown(["measured", ""], [list(row) for row in named.items()])


TABLES: dict[str, Callable[[], str]] = {
    "scale-times": times,
    "scale-called": called,
    "scale-wire": wire,
    "scale-lost": lost,
    "scale-costs": costs,
    "scale-model": model,
    "scale-simulated": simulated,
}
