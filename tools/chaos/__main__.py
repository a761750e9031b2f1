"""Serve, and let clients of every interface and hostile ones at it, for minutes.

Rounds alternate between `logitsieve serve` and `logitsieve serve-gguf`, each with a server of its
own. While honest callers ask and compare every answer with the one that it has alone, troubles come
and go: connections that break the rules, swaps, pauses, files cut in place. A probe on its own
connection measures the longest silence, and the memory and the descriptors of the server have
limits (docs/security.md). A signal ends the round under load. The exit status is 1 after any fault.

    python -m tools.chaos --minutes 30
    python -m tools.chaos --rounds 1 --seed 7 --only completions --model model.gguf
    python -m tools.chaos --python ../older/.venv/bin/python      # the servers of another checkout
"""

import argparse
import sys
import tempfile
from pathlib import Path
from time import monotonic

import numpy as np

from tools.chaos.rounds import ROUNDS, Options
from tools.chaos.tally import Tally


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of all rounds together")
    parser.add_argument("--rounds", type=int, help="of each kind, instead of a time")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--only", choices=list(ROUNDS), help="one kind of rounds")
    parser.add_argument(
        "--model", type=Path, help="a published model instead of a small random one"
    )
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of the servers")
    chosen = parser.parse_args()
    kinds = [chosen.only] if chosen.only else list(ROUNDS)
    total, began, seed = Tally(), monotonic(), chosen.seed
    while True:
        done = seed - chosen.seed
        if done == chosen.rounds or not (
            chosen.rounds or monotonic() < began + 60 * chosen.minutes
        ):
            break
        for kind in kinds:
            with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
                options = Options(Path(folder), chosen.python, chosen.model)
                before = total.faults.copy()
                ROUNDS[kind](options, np.random.default_rng((seed, len(kind))), total)
            new = total.faults - before
            about = f"{kind} seed {seed}: {new.total()} faults"
            print(f"{monotonic() - began:6.0f} s ", about, *new, sep="; ", flush=True)
        seed += 1
    print("\n".join(total.lines()))
    return int(bool(total.faults))


if __name__ == "__main__":
    sys.exit(main())
