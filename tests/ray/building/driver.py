"""A build over a cluster of Ray that kills its own process."""

from __future__ import annotations

import sys
from pathlib import Path

from logitsieve.ray.building import connected
from tests.index_builder.building import build_small, kill_after

if __name__ == "__main__":
    address, out, stage, done = sys.argv[1:]
    with connected(address) as executor:
        build_small(Path(out), executor, progress=kill_after(stage, int(done)))
