"""What one call of one row costs over shards on Ray: latency, and CPU time of each process.

The ingress, the replicas and the client share this machine's cores, so latencies over several
shards are sums here that would be maxima on as many nodes. CPU times of processes are not: they are
what the model (model.py) is made of.
"""

from __future__ import annotations

import os
import pickle
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple, cast

import numpy as np
import ray

from benchmarks.timing import batches_of
from logitsieve.client import DecoderClient
from logitsieve.decoding import ShardedDecoder
from logitsieve.heads.sharded import Shard
from logitsieve.index import Manifest, open_index
from logitsieve.index.contents import read_contents
from logitsieve.ray.serving.deployment import deploy, remove
from logitsieve.ray.serving.remote import own_part
from logitsieve.ray.serving.replica import METHODS, Reply
from logitsieve.server.config import ServeConfig

CALLS, WARM_CALLS, RUNS = 300, 50, 5
K = 5
PORT = 50051
INGRESS, REPLICA = "ray::Ingress", "ray::ServeReplica:logitsieve-shard"
STORE_BYTES = 100_000_000


def calls(index: Path, shards: int, contexts: np.ndarray) -> dict[str, Any]:
    """Microseconds of a call at p50 and p99, of the ingress's CPU, and of a replica's."""
    with deployed(index) as address, DecoderClient(address, timeout_s=30) as client:
        runs = [latencies(client, contexts) for _ in range(RUNS)]
        busy = {title: cpu_seconds(title) for title in (INGRESS, REPLICA)}
        latencies(client, contexts)
        spent = {title: cpu_seconds(title) - before for title, before in busy.items()}
    made = CALLS + WARM_CALLS
    return {
        "p50": statistics.median(float(np.percentile(run, 50)) for run in runs),
        "p99": statistics.median(float(np.percentile(run, 99)) for run in runs),
        "ingress_cpu_us": 1e6 * spent[INGRESS] / made,
        "replica_cpu_us": 1e6 * spent[REPLICA] / made / shards,
    }


@contextmanager
def deployed(index: Path) -> Iterator[str]:
    """The address of an ingress over one index in shards, on a new Ray on this machine."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        address="local", num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False,
        object_store_memory=STORE_BYTES,
    )  # fmt: skip
    try:
        with tempfile.TemporaryDirectory() as scratch:
            models = Path(scratch) / "models"
            (models / "lm").mkdir(parents=True)
            (models / "lm" / "1").symlink_to(index)
            config = ServeConfig(port=PORT, shadow_share=0.0, verify="sizes")
            deploy(models, cpus=0.01, missing="answer", patience_s=10.0, server=config)
            yield f"127.0.0.1:{PORT}"
            remove()
    finally:
        ray.shutdown()


def latencies(client: DecoderClient, contexts: np.ndarray) -> np.ndarray:
    """Microseconds of CALLS calls of one row, after some that are not counted."""
    taken = np.empty(CALLS)
    for number in range(-WARM_CALLS, CALLS):
        row = contexts[number % len(contexts)]
        start = perf_counter_ns()
        client.topk(row, K, model="lm", head="certified")
        taken[number] = (perf_counter_ns() - start) / 1000
    return taken


def cpu_seconds(title: str) -> float:
    """CPU time of all processes of such a title."""
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if (folder / "cmdline").read_bytes().startswith(title.encode()):
                fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])  # utime and stime, proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")


class Messages(NamedTuple):
    """Number and bytes of messages between an ingress and one shard."""

    calls: int
    asked: int
    answered: int


class CountedShard:
    """A shard that counts the bytes of messages about it, as Ray Serve pickles them."""

    remote = True

    def __init__(self, shard: Shard) -> None:
        self.first, self.rows, self.dim = shard.first, shard.rows, shard.dim
        self.norms, self._shard = shard.norms, shard
        self.counted = Messages(0, 0, 0)

    def begin(self, question: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: question(self)

    def __getattr__(self, method: str) -> Any:
        if method not in METHODS:
            raise AttributeError(method)

        def ask(*args: Any) -> Any:
            args = own_part(self.first, self.rows, method, args)
            reply = getattr(self._shard, method)(*args)
            sizes = [len(pickle.dumps(each)) for each in ((method, args), Reply("", reply))]
            self.counted = Messages(*map(sum, zip(self.counted, (1, *sizes), strict=True)))
            return reply

        return ask


def wire(index: Path, contexts: np.ndarray, rows: int) -> dict[str, dict[str, float]]:
    """Calls of one shard, and bytes there and back, for each row: top k, draws, beam steps."""
    opened, counted = open_index(index), list[CountedShard]()

    def connect(number: int) -> tuple[Manifest, Shard]:
        shard = cast("Any", opened.softmax).shards[number - 1]
        counted.append(CountedShard(shard))
        return manifests[number - 1], cast("Shard", counted[-1])

    manifests = [part.manifest for part in read_contents(index).shards]
    decoder = ShardedDecoder(open_index(index, connect=connect))
    asked: dict[str, Callable[[np.ndarray], Any]] = {
        "topk": lambda hidden: decoder.topk(hidden, K, head="certified"),
        "sample": lambda hidden: decoder.sample(hidden, 1, seeds=1, head="certified"),
        "beam_step": lambda hidden: decoder.beam_step(
            hidden, beams_in=1, beams_out=K, head="certified"
        ),
    }
    found = {}
    for name, ask in asked.items():
        for shard in counted:
            shard.counted = Messages(0, 0, 0)
        batches = batches_of(contexts, rows)[:32]
        for hidden in batches:
            ask(hidden)
        total = np.array([shard.counted for shard in counted]).sum(axis=0) / len(counted)
        found[name] = {
            "calls": total[0] / len(batches),
            "asked": total[1] / len(batches) / rows,
            "answered": total[2] / len(batches) / rows,
        }
    return found
