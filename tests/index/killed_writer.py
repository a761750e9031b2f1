"""Run as a program: write the tiny index to argv[1] and die by SIGKILL after the step argv[2]."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.index.samples import write_tiny


def die_after(last: str, step: str) -> None:
    if step == last:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    write_tiny(
        Path(sys.argv[1]),
        calibration={"us": 1.0},
        checkpoint=lambda step: die_after(sys.argv[2], step),
    )
