"""`python -m benchmarks.race DATA`: build, judge and time every method, write the raw numbers.

Each operating point has its precision on the same contexts, one half to choose a method's setting
by and one to judge it on; then all of them are timed in turns with the exact searches: 1 row per
call on 1 thread as in Chen et al. 2019 (arXiv:1810.12406), then 64 rows on 1 and on 2 threads.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Iterable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks import plots, raw
from benchmarks.machine import describe
from benchmarks.race import table
from benchmarks.race.datasets import DATASETS, Dataset, load
from benchmarks.race.entrants import entrants, versions, wanted
from benchmarks.race.judge import Judge
from benchmarks.race.methods import Entrant, Knobs, Method, hold_threads
from benchmarks.race.peers import llama_cpp
from benchmarks.race.points import FLOAT32
from benchmarks.timing import CLEARED_BYTES, Mode, Point, batches_of, call_ns, time_points
from logitsieve.cli.output import bars
from logitsieve.utils.options import Progress

K, KS = 5, (1, 5)
BATCH = 64  # rows of a call, after one of a row
JUDGED_BYTES = 4 << 30  # of logits in float64: so many contexts judge, within the bounds
JUDGED_LOW, JUDGED_HIGH = 1000, 5000
JUDGE_BATCH = 64
STRETCH = 25  # contexts in a row, in the text's order, that choose or judge together
HOPELESS = 4  # times numpy's dense product: a setting that takes longer is left out


def main() -> None:
    parser = raw.parser(__doc__, "race")
    parser.add_argument("data", nargs="+", choices=DATASETS, metavar="DATA", help="dataset")
    parser.add_argument("--threads", type=int, default=2, help="threads of the last timing")
    parser.add_argument("--only", default="", help="methods whose name has one of these, by comma")
    parser.add_argument("--judged", type=int, help="contexts that judge each point")
    parser.add_argument("--cold", action="store_true", help="time calls after other work too")
    parser.add_argument("--rebuild", action="store_true", help="build the indexes again")
    options = parser.parse_args()
    hold_threads(1)
    for name in options.data:
        data = load(name)
        with bars() as progress:
            results = race(data, options, progress)
        results["command"] = f"{parser.prog} {shlex.join(sys.argv[1:])}"
        raw.write(options.out / f"{name}.json.gz", results)
        text = table.markdown(results)
        (options.out / f"{name}.md").write_text(text, encoding="utf-8")
        plots.draw_race(results, options.out)
        print(text)


def race(data: Dataset, options: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    softmax = data.softmax
    fitting = int(np.clip(JUDGED_BYTES // 8 // softmax.vocab_size, JUDGED_LOW, JUDGED_HIGH))
    count = options.judged or fitting
    places = np.linspace(0, len(data.test) - 1, min(count, len(data.test))).astype(np.int64)
    judged, kinds = data.test[places], np.array(data.kinds or ["all"] * len(data.test))[places]
    judge = Judge(softmax, judged, KS, progress)
    only = [*options.only.split(","), *FLOAT32] if options.only else []
    modes = list(dict.fromkeys([Mode(1, 1), Mode(BATCH, 1), Mode(BATCH, options.threads)]))
    threads = sorted({mode.threads for mode in modes})
    racing = entrants(data, threads, options.rebuild, only, progress)
    racing = (each for each in racing if wanted(each.name, only))
    points, records, left_out = judge_all(racing, judge, kinds, progress)
    for mode, cold in product(modes, (False, True)[: 1 + options.cold]):
        times = time_points(points, judged, mode._replace(cold=cold), K, progress)
        for entry, found in zip(records, times, strict=True):
            entry["cold_us_per_row" if cold else "us_per_row"][mode.label] = found
    for kind in dict.fromkeys(data.kinds):
        times = time_points(points, judged[kinds == kind], modes[0], K, progress)
        for entry, found in zip(records, times, strict=True):
            entry["us_by_kind"][kind] = found["median"]
    hold_threads(1)
    return {
        "data": data.name,
        "provenance": data.provenance,
        "machine": describe(),
        "versions": versions(),
        "llama.cpp": llama_cpp.system_info(),
        "vocab_size": softmax.vocab_size,
        "dim": softmax.dim,
        "k": K,
        "fit_contexts": len(data.fit),
        "heldout_contexts": len(data.heldout),
        "judged_contexts": int((~chooses(len(judged))).sum()),
        "modes": [mode.label for mode in modes],
        "cleared_bytes": CLEARED_BYTES if options.cold else 0,
        "weight_bytes": data.weight_bytes,
        "settings_left_out": left_out,
        "points": records,
    }


def judge_all(
    racing: Iterable[Entrant], judge: Judge, kinds: np.ndarray, progress: Progress
) -> tuple[list[Point], list[dict[str, Any]], dict[str, int]]:
    """Return the settings that are timed, their records, and by method how many are left out."""
    points, records = list[Point](), list[dict[str, Any]]()
    left_out, dense_ns, singles = dict[str, int](), 0, batches_of(judge.hidden_states[:2], 1)
    for entrant in racing:
        start = time.monotonic()
        try:
            method = entrant.make()
        except ImportError as error:
            print(f"{entrant.name} is left out: {error}")
            continue
        seconds = time.monotonic() - start if entrant.seconds is None else entrant.seconds
        for number, knobs in enumerate(method.settings):
            progress(f"judge {entrant.name}", number, len(method.settings))
            point = partial(method.at, knobs=knobs)
            one_ns = call_ns(point, singles, Mode(1, 1), K)
            dense_ns = dense_ns or one_ns
            if one_ns > HOPELESS * dense_ns:
                left_out[method.name] = left_out.get(method.name, 0) + 1
                continue
            points.append(point)
            records.append(record(method, knobs, judge, kinds, seconds))
        progress(f"judge {entrant.name}", len(method.settings), len(method.settings))
    return points, records, left_out


def chooses(count: int) -> np.ndarray:
    """Return bool [N]: True for contexts that settings are chosen by; the others judge them."""
    chosen: np.ndarray = np.arange(count) // STRETCH % 2 == 0
    return chosen


def record(
    method: Method, knobs: Knobs, judge: Judge, kinds: np.ndarray, seconds: float
) -> dict[str, Any]:
    """Everything about a point but its times; `kinds` [N] are those of the judge's contexts."""
    method.set_knobs(1, knobs)
    hidden_states, most = judge.hidden_states, max(judge.ks)
    blocks = range(0, len(hidden_states), JUDGE_BATCH)
    answers = [method.topk(hidden_states[i : i + JUDGE_BATCH], most).copy() for i in blocks]
    score = judge.score(np.concatenate(answers))
    choosing = chooses(len(hidden_states))
    by_kind = {kind: ~choosing & (kinds == kind) for kind in dict.fromkeys(kinds.tolist())}
    precision = score.precision(~choosing)
    return {
        "method": method.name,
        "kind": method.kind,
        "built": dict(method.built),
        "knobs": dict(knobs),
        "chosen_by": {f"p{k}": share for k, share in score.precision(choosing).items()},
        "p1": precision[1],
        "p5": precision[5],
        "p1_by_kind": {kind: score.precision(rows)[1] for kind, rows in by_kind.items()},
        "build_seconds": round(seconds, 2),
        "bytes_beyond_w": method.nbytes,
        "us_per_row": {},
        "us_by_kind": {},
        "cold_us_per_row": {},
    }
