"""The facts of a machine that decide how long a head takes on it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from logitsieve.evaluation import cpu_name
from logitsieve.kernels.simd.lanes import cpu_has

# Sets of instructions that make kernels faster, by the names that LLVM gives them.
FEATURES = (
    "avx2", "avxvnni", "avx512f", "avx512vnni", "avx512bf16", "neon", "dotprod", "i8mm", "sve",
)  # fmt: skip
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def machine_facts(threads: int) -> dict[str, str]:
    """The processor, the features that kernels are compiled for, its caches, and `threads`.

    Hypervisors give different processors one name, so the name alone does not identify a machine.
    """
    return {
        "cpu": cpu_name(),
        "features": cpu_features(),
        "caches": cache_sizes(),
        "threads": str(threads),
    }


@cache
def cpu_features() -> str:
    """The FEATURES that Numba compiles for, behind the processor that its settings name."""
    named = os.environ.get("NUMBA_CPU_NAME", "")
    return " ".join([*filter(None, [named]), *filter(cpu_has, FEATURES)])[:100] or "none"


@cache
def cache_sizes(folder: Path = CACHES) -> str:
    """The caches that hold data, as in "L1 48K, L2 1024K"; "unknown" where Linux does not run."""
    sizes = (f"{level} {size}" for level, size in data_caches(folder).items())
    return ", ".join(sizes)[:100] or "unknown"


def data_caches(folder: Path = CACHES) -> dict[str, str]:
    """The levels of these caches and their sizes, as Linux writes them: {"L1": "48K"}."""
    sizes = {}
    for index in sorted(folder.glob("index*")):
        try:
            level, kind, size = (
                (index / fact).read_text(encoding="utf-8").strip()
                for fact in ("level", "type", "size")
            )
        except OSError:
            continue
        if kind != "Instruction":
            sizes[f"L{level}"] = size
    return sizes


def differences(measured: Mapping[str, str], here: Mapping[str, str]) -> str:
    """The machine `measured` as it differs from the one `here`; "" where it does not.

    That is its name, or behind an equal name the facts that differ. A fact that `measured` lacks,
    as calibrations of earlier builders do, differs.
    """
    if measured["cpu"] != here["cpu"]:
        return measured["cpu"]
    facts = [
        f"{fact}: {measured.get(fact, 'not stored')}, here {value}"
        for fact, value in here.items()
        if measured.get(fact) != value
    ]
    return f"{here['cpu']} ({'; '.join(facts)})" if facts else ""
