"""Run as a program: write the tiny index to argv[1]/0/2 ...; each time die after a step."""

import os
import signal
import sys
from functools import partial
from pathlib import Path

from tests.index.samples import write_tiny


def die_after(last: str, step: str) -> None:
    if step == last:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    for place, last in enumerate(sys.argv[2:]):
        if not (child := os.fork()):
            out = Path(sys.argv[1], str(place), "2")
            write_tiny(out, calibration={"us": 1.0}, checkpoint=partial(die_after, last))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, last
