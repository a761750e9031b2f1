"""Repeat a table, figure or theorem of a paper: `python -m benchmarks.papers 001 --table 2`.

Raw results go to benchmarks/results/papers; `make tables` fills docs/papers.md from them. Without a
table or figure, list the ones that a paper has here.
"""

import argparse
import time
from pathlib import Path

from benchmarks import raw
from benchmarks.machine import describe
from benchmarks.papers import kmeans_softmax, learning_to_screen, lns, lsh_softmax, rf_softmax
from benchmarks.papers.runs import Options, Run
from benchmarks.race.methods import hold_threads

PAPERS: dict[str, dict[str, Run]] = {
    "000": lsh_softmax.RUNS,
    "001": learning_to_screen.RUNS,
    "002": rf_softmax.RUNS,
    "003": lns.RUNS,
    "004": kmeans_softmax.RUNS,
}
KINDS = ("table", "figure", "theorem")
OUT = raw.RESULTS / "papers"


def main() -> None:
    """Run one of them, then write and print its rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=__doc__)
    parser.add_argument("paper", choices=PAPERS, help="as docs/papers.md numbers them")
    which = parser.add_mutually_exclusive_group()
    for kind in KINDS:
        which.add_argument(f"--{kind}", help="its number")
    which.add_argument(
        "--ablation", action="store_true", help="hashing apart from in-batch targets"
    )
    parser.add_argument("--words", type=int, default=300_000, help="that a language model reads")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each setting")
    parser.add_argument("--seconds", type=float, default=60, help="of a classifier's training")
    parser.add_argument(
        "--data", default="demo", help="softmax of the race, for those that use one"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the raw results")
    options = parser.parse_args()
    runs = PAPERS[options.paper]
    numbers = ((kind, getattr(options, kind)) for kind in KINDS)
    name = next((f"{kind} {number}" for kind, number in numbers if number), "")
    name = "ablation" if options.ablation else name
    if name not in runs:
        raise SystemExit(f"{options.paper} has: {', '.join(runs)}")
    hold_threads(1)
    start = time.process_time()
    rows = runs[name](Options(options.words, options.seeds, options.seconds, options.data))
    results = {
        "machine": describe(),
        "command": command(options, parser, name),
        "cpu_minutes": round((time.process_time() - start) / 60, 1),
        "rows": rows,
    }
    raw.write(options.out / f"{options.paper}-{name.replace(' ', '-')}.json.gz", results)
    for row in rows:
        print(row)


def command(options: argparse.Namespace, defaults: argparse.ArgumentParser, name: str) -> str:
    """The command, with the options that are not as usual."""
    said = []
    for size in ("words", "seeds", "seconds", "data"):
        value = getattr(options, size)
        if value != defaults.get_default(size):
            said.append(f" --{size} {value:g}" if size == "seconds" else f" --{size} {value}")
    return f"python -m benchmarks.papers {options.paper} --{name}{''.join(said)}"


if __name__ == "__main__":
    main()
