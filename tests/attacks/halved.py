"""Every constant of the proofs made smaller in turn, and what the attacks find then.

    python -m tests.attacks.halved --seconds 30 --factor 0.5

A constant whose half no attack finds is slack, or hidden by others. Each is changed in a process of
its own, before its kernels are compiled, and these go to a folder of their own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.results import Float32
from logitsieve.kernels import compile as compiling
from logitsieve.kernels.screen import route
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA, EXTRA
from tests.attacks.registry import ATTACKS
from tests.attacks.tally import attack_once

BOUNDS, EXACT, SUMS, STEPS = ("topk", "bounds"), ("topk-one", "topk-near"), ("log-z",), ("beams",)
LAW = ("draws-law",)
SKETCH, DESCRIPTOR = "kernels.sketch.sketch", "kernels.topk.descriptor"
INTERVALS, WEIGHTS = "kernels.intervals.intervals", "kernels.intervals.sums"
LOG_Z, QUICK = "kernels.sampling.log_z", "kernels.sampling.quick_log_z"
BUILDER, ROUTE, ROUTES = "index_builder.fit.certified", "kernels.screen.route", ("routes",)


class Constant(NamedTuple):
    """A number of a module of logitsieve, and the attacks that it is made to withstand."""

    module: str
    name: str
    attacks: tuple[str, ...]
    beyond: float = 0.0  # the part of it that is none of the proof's: 1 of a factor of 1.01

    def times(self, factor: float, value: float) -> float:
        return type(value)(self.beyond + factor * (value - self.beyond))


CONSTANTS = (
    *(Constant("sketch", name, BOUNDS) for name in ("kappa", "Q", "n", "left")),
    Constant(BUILDER, "ROUNDED", BOUNDS, 1.0),
    Constant(SKETCH, "ROTATION_STEPS", BOUNDS),
    Constant(SKETCH, "ROTATION_SPARE", BOUNDS, 1.0),
    Constant(SKETCH, "ROTATION_UNDERFLOW", BOUNDS),
    Constant(SKETCH, "CANCELLED", BOUNDS),
    Constant(SKETCH, "SUMMED", BOUNDS, 1.0),
    Constant(SKETCH, "NORM_SPARE", BOUNDS, 1.0),
    Constant(SKETCH, "BOUND_MARGIN", BOUNDS),
    Constant(SKETCH, "LEFT_SPARE", BOUNDS, 1.0),
    Constant(SKETCH, "EXACT_STEPS", BOUNDS),
    Constant(SKETCH, "UNIT64", BOUNDS),
    Constant(SKETCH, "LEAST_MARGIN", BOUNDS),
    Constant("kernels.sketch.thresholds", "SPARE", BOUNDS),
    Constant("kernels.simd.planes", "NO_LARGER", BOUNDS, 1.0),
    Constant(DESCRIPTOR, "NORM_SPARE", BOUNDS, 1.0),
    Constant(DESCRIPTOR, "UNIT32", (*BOUNDS, *SUMS)),
    Constant(DESCRIPTOR, "GAMMA_SPARE", EXACT, 1.0),
    Constant(DESCRIPTOR, "DOT64_SPARE", EXACT),
    Constant(DESCRIPTOR, "DOT_UNDERFLOW", EXACT),
    Constant("kernels.topk.scan", "ROUNDING32", EXACT),
    Constant("kernels.topk.scan", "ROUNDING64", EXACT),
    Constant(INTERVALS, "MARGIN_SPARE", SUMS, 1.0),
    Constant(INTERVALS, "BOUND_SPARE", SUMS),
    Constant(WEIGHTS, "LIFT", SUMS),
    Constant(WEIGHTS, "SUM_SPARE", SUMS),
    Constant(WEIGHTS, "LOG_SPARE", SUMS),
    Constant(WEIGHTS, "KNOWN_SPARE", (*SUMS, *LAW)),
    Constant("kernels.intervals.nucleus", "CLOSE", LAW),
    Constant("kernels.intervals.nucleus", "EDGE", LAW),
    Constant(LOG_Z, "SPREAD", SUMS),
    Constant(LOG_Z, "STEP", SUMS),
    Constant(LOG_Z, "TINY", SUMS),
    Constant(LOG_Z, "LOG_ERROR", SUMS),
    Constant(QUICK, "ROUGH", SUMS),
    Constant(QUICK, "ROUNDED", SUMS),
    Constant(QUICK, "SUMMED", SUMS),
    Constant(QUICK, "TINY", SUMS),
    Constant("kernels.topk.merge", "ROUNDED", STEPS),
    Constant("kernels.sampling.printing", "ROUNDED", ("score", "draws")),
    Constant("kernels.sampling.printing", "SUMMED", ("score", "draws")),
    Constant("kernels.sampling.gumbel", "SPARE", ("draws-winners", *LAW), 1.0),
    Constant("centroids", "error", ROUTES),
    Constant(ROUTE, "ERROR_SPARE", ROUTES, 1.0),
    Constant(ROUTE, "SLACK_SPARE", ROUTES, 1.0),
    Constant(ROUTE, "ROUNDED", ROUTES),
    Constant(ROUTE, "UNDERFLOW", ROUTES),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="of attacks on each")
    parser.add_argument("--factor", type=float, default=0.5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", default="", help="constants whose names begin so")
    parser.add_argument("--one", type=int, help="the place of one, whose result is JSON")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(attacked(CONSTANTS[options.one], options.factor, options.seconds)))
        return 0
    places = [i for i, each in enumerate(CONSTANTS) if each.name.startswith(options.only)]
    print("| constant | rows | wrong | found by | tightest |\n|---|---|---|---|---|", flush=True)
    with ThreadPoolExecutor(options.workers) as pool:
        for line in pool.map(lambda place: _line(place, options), places):
            print(line, flush=True)
    return 0


def _line(place: int, options: argparse.Namespace) -> str:
    command = [sys.executable, "-m", "tests.attacks.halved", "--one", str(place)]
    command += ["--seconds", str(options.seconds), "--factor", str(options.factor)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    constant = CONSTANTS[place]
    name = f"{constant.module.rpartition('.')[2]}.{constant.name}"
    rows, wrong, tightest = found["rows"], found["wrong"], found["tightest"]
    return f"| `{name}` | {rows:,} | {wrong} | {found['by']} | {tightest:.6f} |"


def attacked(constant: Constant, factor: float, seconds: float) -> dict[str, Any]:
    """Counts up to the first wrong answer, or of so many seconds."""
    np.seterr(all="ignore")
    with tempfile.TemporaryDirectory() as folder:
        compiling.use_cache(Path(folder))
        change(constant, factor)
        chosen = [name for name in ATTACKS if name.startswith(constant.attacks)]
        spent = dict.fromkeys(chosen, 0.0)
        rounds = dict.fromkeys(chosen, 0)
        rows, tightest, began = 0, 0.0, None
        while began is None or perf_counter() - began < seconds:
            name = min(chosen, key=lambda name: spent[name])
            started = perf_counter()
            tally = attack_once(ATTACKS[name], rounds[name])
            rounds[name] += 1
            if rounds[name] > 1:  # the first one compiles
                spent[name] += perf_counter() - started
            if began is None and all(rounds.values()):
                began = perf_counter()
            rows, tightest = rows + tally.rows, max(tightest, tally.tightest)
            if tally.wrong:
                return {"rows": rows, "wrong": tally.wrong, "by": name, "tightest": tightest}
    return {"rows": rows, "wrong": 0, "by": "", "tightest": tightest}


def change(constant: Constant, factor: float) -> None:
    """Give a constant another value wherever it was imported, or what a builder stores of it."""
    if constant.module == "centroids":
        route.encode_centroids = underrated(route.encode_centroids, factor)
        return
    if constant.module == "sketch":
        for module in ("matrices", "bounds"):
            target: Any = import_module(f"tests.attacks.{module}")
            target.code = lessened(target.code, constant.name, factor)
        return
    import logitsieve.decoding
    import logitsieve.kernels

    for package in (logitsieve.kernels, logitsieve.decoding):
        for found in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(found.name)
    for loaded in list(sys.modules.values()):
        for each in vars(loaded).values():  # machine code would keep the constant that it was of
            assert not (isinstance(each, compiling.Kernel) and each.entry.cache_info().currsize)
    owner: Any = import_module(f"logitsieve.{constant.module}")
    value = getattr(owner, constant.name)
    instead = constant.times(factor, value)
    for loaded in list(sys.modules.values()):
        if getattr(loaded, constant.name, None) is value:
            setattr(loaded, constant.name, instead)
    assert getattr(owner, constant.name) == instead


def underrated(encode: Callable[..., Any], factor: float) -> Callable[..., Any]:
    """`encode_centroids` with a smaller error than the centroids' codes have."""

    def wrapped(centroids: Float32) -> tuple[np.ndarray, Float32, float]:
        codes, scales, error = encode(centroids)
        return codes, scales, factor * error

    return wrapped


def lessened(code: Callable[..., Any], name: str, factor: float) -> Callable[..., Any]:
    """A builder of sketches that stores less than it should."""

    def wrapped(*arguments: Any) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = code(*arguments)
        places = {"kappa": [0, 2], "Q": [1, 3], "left": [4], "n": []}[name]
        arrays["limits"][places] *= factor
        if name == "n":
            fine = arrays["fine"][:, -EXTRA:].copy().view(np.float32)
            fine[:, 1] *= np.float32(factor)
            arrays["fine"][:, -EXTRA:] = fine.view(np.uint8)
            coarse, size = arrays["coarse"], LANES * COARSE_EXTRA
            extras = coarse[:, -size:].copy().view(np.float32).reshape(-1, 3, LANES)
            extras[:, 1] *= np.float32(factor)
            coarse[:, -size:] = extras.reshape(len(coarse), -1).view(np.uint8)
        return arrays

    return wrapped


if __name__ == "__main__":
    sys.exit(main())
