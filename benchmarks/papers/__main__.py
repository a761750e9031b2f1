"""Repeat a table, figure or theorem of a paper: `python -m benchmarks.papers 001 --table 2`.

Raw results go to benchmarks/results/papers; `make tables` fills README.md here from them. Without a
table or figure, list the ones that a paper has here.
"""

import shlex
import sys
import time

from benchmarks import raw
from benchmarks.machine import describe
from benchmarks.papers import kmeans_softmax, learning_to_screen, lns, lsh_softmax, rf_softmax
from benchmarks.papers.runs import Run
from benchmarks.race.methods import hold_threads

PAPERS: dict[str, dict[str, Run]] = {
    "000": lsh_softmax.RUNS,
    "001": learning_to_screen.RUNS,
    "002": rf_softmax.RUNS,
    "003": lns.RUNS,
    "004": kmeans_softmax.RUNS,
}


def main() -> None:
    parser = raw.parser(__doc__, "papers")
    parser.add_argument("paper", choices=PAPERS, help="as benchmarks/papers/README.md numbers them")
    which = parser.add_mutually_exclusive_group()
    for kind in ("table", "figure", "theorem"):
        which.add_argument(f"--{kind}", dest="run", type=f"{kind} {{}}".format, metavar="NUMBER")
    others = {
        "ablation": "hashing apart from in-batch targets",
        "perplexity": "of a language model, where the paper has none",
    }
    for kind, about in others.items():
        which.add_argument(f"--{kind}", dest="run", action="store_const", const=kind, help=about)
    parser.add_argument("--words", type=int, default=300_000, help="that a language model reads")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each setting")
    parser.add_argument("--seconds", type=float, default=60, help="of a classifier's training")
    parser.add_argument("--steps", type=int, help="of a classifier's training, instead")
    parser.add_argument("--data", default="demo", help="softmax of the race, if one is used")
    options = parser.parse_args()
    runs = PAPERS[options.paper]
    if options.run not in runs:
        raise SystemExit(f"{options.paper} has: {', '.join(runs)}")
    hold_threads(1)
    start = time.process_time()
    rows = []
    for row in runs[options.run](options):
        print(row, flush=True)
        rows.append(row)
    results = {
        "machine": describe(),
        "command": f"{parser.prog} {shlex.join(sys.argv[1:])}",
        "cpu_minutes": round((time.process_time() - start) / 60, 1),
        "rows": rows,
    }
    by = "-by-steps" if options.steps else ""
    name = f"{options.paper}-{options.run.replace(' ', '-')}{by}"
    raw.write(options.out / f"{name}.json.gz", results)


if __name__ == "__main__":
    main()
