"""Attack what is claimed to be exact: `python -m tools.attacks --minutes 10 --only topk`.

All attacks have the same share of the time. A table says how many rows were attacked (contexts,
groups of hypotheses, files), how many answers were wrong, and how tight the tightest bound was: the
error over what is allowed. The exit status is 1 if an answer was wrong, and the last lines say how
to repeat the first of each attack.
"""

import argparse
import sys
from time import perf_counter

import numpy as np

from tools.attacks.registry import ATTACKS
from tools.attacks.tally import Tally, attack_once


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of all attacks together")
    parser.add_argument("--rounds", type=int, help="of each attack, instead of a time")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--only", default="", help="attacks whose names begin so")
    options = parser.parse_args()
    chosen = {name: each for name, each in ATTACKS.items() if name.startswith(options.only)}
    if not chosen:
        parser.error(f"--only: there are {', '.join(ATTACKS)}")
    np.seterr(all="ignore")
    tallies = {name: Tally() for name in chosen}
    spent, rounds, began = dict.fromkeys(chosen, 0.0), dict.fromkeys(chosen, 0), perf_counter()
    while True:
        name = min(chosen, key=lambda name: rounds[name] if options.rounds else spent[name])
        if options.rounds and rounds[name] == options.rounds:
            break
        if not options.rounds and perf_counter() - began > 60 * options.minutes:
            break
        started = perf_counter()
        tallies[name].join(attack_once(chosen[name], options.seed + rounds[name]))
        rounds[name] += 1
        spent[name] += perf_counter() - started
    print(f"{'attack':26} {'rounds':>8} {'rows':>10} {'wrong':>7} {'tightest':>9} {'s':>7}")
    for name, tally in tallies.items():
        tight = f"{tally.tightest:9.6f}" if tally.tightest else f"{'':9}"
        counts = f"{rounds[name]:8} {tally.rows:10} {tally.wrong:7}"
        print(f"{name:26} {counts} {tight} {spent[name]:7.1f}")
    for name, tally in tallies.items():
        if tally.wrong:
            seed, example = tally.example.split(": ", 1)
            print(f"\n{name}: {example}")
            print(f"    python -m tools.attacks --only {name} --rounds 1 --{seed}")
    return int(any(tally.wrong for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
