"""Run as a program: train the run in argv[1] and die by SIGKILL after the step argv[2]."""

import os
import signal
import sys
from pathlib import Path

from logitsieve.training.trainer import TrainingStatus, train


def die_after(last: int, status: TrainingStatus) -> None:
    if status.steps == last:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    train(Path(sys.argv[1]), show=lambda status: die_after(int(sys.argv[2]), status))
