"""A run counts answers by caller, silences, memory, and faults with their seeds."""

from collections import Counter
from dataclasses import dataclass, field
from threading import Lock

OUTCOMES = ("right", "refused", "lost", "wrong")


@dataclass
class Tally:
    """Thread-safe counts of one run."""

    answers: dict[str, Counter[str]] = field(default_factory=dict)  # by caller
    faults: Counter[str] = field(default_factory=Counter)  # by their sentence
    examples: dict[str, str] = field(default_factory=dict)  # of faults, the first of each
    worst: dict[str, float] = field(default_factory=dict)  # measured, by what a limit is for
    lock: Lock = field(default_factory=Lock)

    def count(self, caller: str, outcome: str, example: str = "") -> None:
        """Count an answer; a lost or a wrong one is a fault."""
        with self.lock:
            self.answers.setdefault(caller, Counter())[outcome] += 1
        if outcome in ("lost", "wrong"):
            self.fault(f"{caller}: {outcome}", example)

    def fault(self, sentence: str, example: str = "") -> None:
        with self.lock:
            self.faults[sentence] += 1
            self.examples.setdefault(sentence, example[:300])

    def measure(self, what: str, value: float, most: float, where: str, example: str = "") -> None:
        """Keep the largest of `what`; beyond `most` it is a fault."""
        with self.lock:
            self.worst[what] = max(value, self.worst.get(what, 0.0))
        if value > most:
            self.fault(f"{what}: more than {most:g} {where}", f"{value:.1f} {example}")

    def lines(self) -> list[str]:
        made = [f"{'caller':14}" + "".join(f"{outcome:>10}" for outcome in OUTCOMES)]
        for caller, counts in sorted(self.answers.items()):
            made.append(f"{caller:14}" + "".join(f"{counts[outcome]:10}" for outcome in OUTCOMES))
        made += [f"{what}: at most {value:.1f}" for what, value in sorted(self.worst.items())]
        for what, times in self.faults.most_common():
            made.append(f"FAULT, {times} times: {what}; {self.examples[what]}".rstrip("; "))
        return made
