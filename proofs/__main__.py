"""Check every theorem and print how far each constant is from what is proven.

    python -m proofs [--quick] [--coq SCRIPTS] [NAME ...]

--quick leaves out the search for the slack; a NAME chooses the theorems whose name has it. With
--coq, Coq checks Gappa's certificates of so many scripts of each theorem instead, spread over all
of them. Without the programs this says how to get them and fails.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from math import isinf
from time import perf_counter

from proofs import THEOREMS
from proofs.certificate import Checked, certificate, checked, coq
from proofs.theorem import Theorem, gappa

ROW = "{:28} {:44} {:>11} {:>11} {:>9} {:>6}  {}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="proofs", description="Check the rounding constants.")
    parser.add_argument("names", nargs="*", help="theorems whose names have one of these words")
    parser.add_argument("--quick", action="store_true", help="do not search for the slack")
    parser.add_argument("--coq", type=int, metavar="SCRIPTS", help="check their certificates")
    options = parser.parse_args()
    if gappa() is None:
        print("Gappa is not installed, and checks the theorems: apt-get install gappa")
        return 1
    if options.coq and coq() is None:
        print("Coq is not installed: apt-get install coq libcoq-flocq libcoq-gappa")
        return 1
    chosen = [t for t in THEOREMS if any(n in t.name for n in options.names or [""])]
    if options.coq:
        return _certified(chosen, options.coq)
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


def _certified(theorems: list[Theorem], most: int) -> int:
    """Print what Coq says of some certificates of each theorem; 1 if it accepts not all."""
    counts, begin = Counter[Checked](), perf_counter()
    for theorem in theorems:
        checks = theorem.checks(theorem.value)
        scripts = list(dict.fromkeys(each for each in checks if isinstance(each, str)))
        spread = scripts[:: max(1, len(scripts) // most)][:most]
        each = Counter(checked(certificate(script)) for script in spread)
        counts += each
        said = ", ".join(f"{count} {verdict.value}" for verdict, count in each.items())
        print(f"{theorem.name:36} {len(scripts):4} scripts  {said or 'no script'}", flush=True)
    said = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items())
    print(f"certificates: {said}, {perf_counter() - begin:.0f} s")
    return 1 if counts[Checked.NO] else 0


if __name__ == "__main__":
    sys.exit(main())
