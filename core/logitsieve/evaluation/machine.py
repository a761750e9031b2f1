"""Which processor timings were taken on."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path


@cache
def cpu_name() -> str:
    """The processor as the system names it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
