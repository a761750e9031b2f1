"""An attack is a round of some rows from one seed; a tally is what it counts."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Bool = np.ndarray


@dataclass
class Tally:
    """Rows attacked and wrong answers among them.

    `tightest` is the largest part of what a bound allows that an error took: above 1 it is wrong.
    """

    rows: int = 0
    wrong: int = 0
    tightest: float = 0.0
    example: str = ""  # of a wrong answer

    def add(self, wrong: Bool, describe: Callable[[int], str] = str) -> "Tally":
        """Count rows [N], and return self; `describe` explains the wrong row at a place."""
        self.rows += len(wrong)
        self.wrong += int(wrong.sum())
        if wrong.any() and not self.example:
            self.example = describe(int(np.argmax(wrong)))
        return self

    def tighten(self, parts: np.ndarray) -> None:
        """Keep the largest of `parts`, NaN being none."""
        parts = parts[parts == parts]
        if parts.size:
            self.tightest = max(self.tightest, float(parts.max()))

    def join(self, other: "Tally") -> None:
        self.rows += other.rows
        self.wrong += other.wrong
        self.tightest = max(self.tightest, other.tightest)
        self.example = self.example or other.example


# A round: the same rows and the same counts for the same generator.
Attack = Callable[[np.random.Generator], Tally]


def attack_once(attack: Attack, seed: int) -> Tally:
    """The round of that seed, with which its example begins; an exception is a wrong answer."""
    try:
        tally = attack(np.random.default_rng(seed))
    except Exception as error:
        tally = Tally(1, 1, example=f"{type(error).__name__}: {error}")
    if tally.example:
        tally.example = f"seed {seed}: {tally.example}"
    return tally


def require_none_wrong(attack: Attack, rounds: int) -> None:
    """Attack with the seeds 0, 1, ... for a test."""
    total = Tally()
    with np.errstate(all="ignore"):
        for seed in range(rounds):
            total.join(attack_once(attack, seed))
    assert total.rows > 0
    assert total.wrong == 0, total.example  # `python -m tools.attacks` repeats it
