"""A server under steady load for half an hour. `python -m benchmarks.soak --seconds 1800`.

Every interval: its resident memory, its open descriptors, answers a second and p99. What should be
flat is fitted by a line: the slope of memory, and the last fifth's p99 over the first's.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load.clients import Plan
from benchmarks.load.servers import load
from benchmarks.machine import describe
from benchmarks.rpc import DATA, build_index
from logitsieve.index import open_index
from logitsieve.index_builder.arrays import load_array

OUT = Path(__file__).parent / "results" / "soak.json"
INTERVAL_S = 15.0
CLIENTS = 8


def main() -> None:
    """Soak, write the raw numbers, print what they come to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="lm-docs-10k-200.npz")
    parser.add_argument("--index", type=Path, help="ask this index instead of building one")
    parser.add_argument("--contexts", type=Path, help="contexts for --index, .npy [N, D]")
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long")
    parser.add_argument("--interval", type=float, default=INTERVAL_S, help="seconds of a sample")
    parser.add_argument("--out", type=Path, default=OUT, help="raw results, JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if options.index:
            index, source = open_index(options.index), str(options.contexts)
        else:
            index, source = build_index(options.data, Path(scratch)), f"{options.data}:H_test"
        contexts = Path(scratch) / "contexts.npy"
        np.save(contexts, np.asarray(load_array(source)[:4096], np.float32))
        samples = soak(index.path.parent.parent, contexts, options.seconds, options.interval)
    results = {"machine": describe(), "samples": samples} | summary(samples)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print({name: value for name, value in results.items() if name not in ("machine", "samples")})


def soak(models: Path, contexts: Path, seconds: float, interval_s: float) -> list[dict[str, Any]]:
    """A sample for each interval; single rows, batches of 64 and the exact head in turn."""
    command = [sys.executable, "-m", "logitsieve.cli", "serve", "--models", str(models)]
    command += ["--port", "0", "--metrics-port", "0", "--no-admin"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        address = next(found[1] for line in server.stderr if (found := ADDRESS.search(line)))
        kinds: list[dict[str, Any]] = [{"rows": 1}, {"rows": 64}, {"rows": 1, "head": "exact"}]
        samples = []
        for number in range(max(len(kinds), round(seconds / interval_s))):
            kind = kinds[number % len(kinds)]
            plan = Plan(
                address=address,
                contexts=str(contexts),
                clients=CLIENTS,
                seconds=interval_s,
                warm_s=0.2,
                **kind,
            )
            run = load(plan)
            samples.append(
                kind
                | {"second": number * interval_s, "codes": run.codes, "us": run.us}
                | {"rss_bytes": resident_bytes(server.pid), "descriptors": descriptors(server.pid)}
            )
        return samples
    finally:
        server.terminate()
        server.wait()


ADDRESS = re.compile(r"gRPC at ([^\s,]+)")


def summary(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """What drifted: memory over the second half, when caches are full; p99 by kind of load."""
    later = samples[len(samples) // 2 :]
    hours = [sample["second"] / 3600 for sample in later]
    slope = np.polyfit(hours, [s["rss_bytes"] / 1e6 for s in later], 1)[0] if len(later) > 1 else 0
    return {
        "rss_mb": samples[-1]["rss_bytes"] / 1e6,
        "rss_mb_per_hour": float(slope),
        "descriptors": [samples[0]["descriptors"], samples[-1]["descriptors"]],
        "p99_last_over_first": {
            f"{rows} rows {head or 'own head'}": drift(
                [s for s in samples if (s["rows"], s.get("head", "")) == (rows, head)]
            )
            for rows, head in ((1, ""), (64, ""), (1, "exact"))
        },
        "failed": sum(n for s in samples for code, n in s["codes"].items() if code != "OK"),
    }


def drift(samples: list[dict[str, Any]]) -> float:
    """Median p99 of the last fifth over that of the first."""
    part = max(1, len(samples) // 5)
    first, last = (
        statistics.median(s["us"]["p99"] for s in some)
        for some in (samples[:part], samples[-part:])
    )
    return float(last / first)


def resident_bytes(pid: int) -> int:
    """Of a process, by Linux."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def descriptors(pid: int) -> int:
    """Open ones."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


if __name__ == "__main__":
    main()
