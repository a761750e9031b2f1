"""Check the kernels' rounding constants as theorems; print how far each is from the proven limit.

    python -m proofs [--quick] [NAME ...]

--quick skips the search for the slack; NAMEs select theorems by words of their names.
"""

import argparse
import sys
from math import isinf
from time import perf_counter

from proofs import exponential, levels, log_z, route, scan, sketch
from proofs.theorem import Theorem, gappa

MODULES = sketch, levels, scan, route, exponential, log_z
THEOREMS = [theorem for module in MODULES for theorem in module.THEOREMS]
ROW = "{:28} {:44} {:>11} {:>11} {:>9} {:>6}  {}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="proofs", description="Check the rounding constants.")
    parser.add_argument("names", nargs="*", help="theorems whose names have one of these words")
    parser.add_argument("--quick", action="store_true", help="do not search for the slack")
    options = parser.parse_args()
    if gappa() is None:
        print("Gappa is not installed, and checks the theorems: apt-get install gappa")
        return 1
    chosen = [t for t in THEOREMS if any(n in t.name for n in options.names or [""])]
    print(ROW.format("theorem", "constant", "value", "proven", "slack", "s", ""))
    begin = perf_counter()
    failed = [theorem.name for theorem in chosen if not _shown(theorem, options.quick)]
    print(f"{len(chosen)} theorems, {len(failed)} not proven, {perf_counter() - begin:.0f} s")
    return 1 if failed else 0


def _shown(theorem: Theorem, quick: bool) -> bool:
    begin = perf_counter()
    holds, tightest, slack = theorem.holds(theorem.value), "", ""
    if holds and not quick:
        most = theorem.proven_slack()
        tightest = "none" if isinf(most) else f"{theorem.weakened(theorem.value, most):.4g}"
        slack = f"{most:.3g}"
    time, verdict = f"{perf_counter() - begin:.1f}", "" if holds else "NOT PROVEN"
    value = f"{theorem.value:.6g}"
    print(ROW.format(theorem.name, theorem.constant, value, tightest, slack, time, verdict))
    return holds


if __name__ == "__main__":
    sys.exit(main())
