"""Runs that are kept as they finish: an experiment that was killed goes on where it was.

A run is decided by its settings, a dict that JSON can hold; what it found lies in a file named
after them. `--fresh` makes all runs again: after a change of the code, which no name tells.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.race.methods import hold_threads
from benchmarks.race.prepare import SHARED
from logitsieve.api.errors import LogitsieveError

CACHE = Path.home() / ".cache" / "logitsieve-training"
OUT = Path(__file__).parents[1] / "results" / "training"
Found = dict[str, Any]


class Runs:
    """Finished runs of one experiment, in `folder`."""

    def __init__(self, folder: Path, fresh: bool = False) -> None:
        self.folder = folder
        self._fresh = fresh

    def get(self, settings: Mapping[str, Any], make: Callable[[], Found]) -> Found:
        """{"settings", "load", ...}: from the file, or made now and kept.

        A run that the package refuses or that diverges is kept as {"failed": why}.
        """
        path = self.path(settings, ".json")
        if path.exists() and not self._fresh:
            kept: Found = json.loads(path.read_text(encoding="utf-8"))
            return kept
        load = os.getloadavg()[0]
        try:
            found = make()
        except LogitsieveError as error:
            found = {"failed": str(error)}
        record = {"settings": dict(settings), "load": load, **found}
        write_json(path, record)
        return record

    def path(self, settings: Mapping[str, Any], suffix: str) -> Path:
        """Where a run with these settings keeps its files."""
        text = json.dumps(settings, sort_keys=True)
        return self.folder / (hashlib.sha256(text.encode()).hexdigest()[:20] + suffix)


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    scratch.replace(path)


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """With the options that every experiment has."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--short", action="store_true", help="some ten minutes on one core; the results say so"
    )
    parser.add_argument("--fresh", action="store_true", help="make runs again that are kept")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--cache", type=Path, default=CACHE, help="finished runs and data")
    parser.add_argument("--shared", type=Path, default=SHARED, help="the folder with data/")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    return parser


def begin(
    options: argparse.Namespace, short: Mapping[str, Any], experiment: str
) -> tuple[Runs, Found]:
    """Threads held; what `short` says where no option does; the runs, and the conditions.

    An option that is None was not given: it is set from `short` or left to the caller's default.
    """
    hold_threads(options.threads)
    if options.short:
        for name, value in short.items():
            if getattr(options, name) is None:
                setattr(options, name, value)
    return Runs(options.cache / "runs" / experiment, options.fresh), {
        "experiment": experiment,
        "preset": "short" if options.short else "whole",
        "machine": describe(),
        "load": os.getloadavg()[0],
        "threads": options.threads,
        "precision": "float32",
    }


def default(options: argparse.Namespace, **values: Any) -> None:
    """Set what neither the user nor the preset has."""
    for name, value in values.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def write(path: Path, results: Found, table: str) -> None:
    """`path` and the same name with .md; the table is printed."""
    write_json(path, results)
    path.with_suffix(".md").write_text(table, encoding="utf-8")
    print(table)


def conditions(results: Mapping[str, Any]) -> str:
    """A sentence that every table begins with."""
    machine, rates = results["machine"], results["machine"]["read_GBps"]
    return (
        f"{machine['cpu']}, {results['threads']} thread(s), {results['precision']}; one core reads "
        f"{rates['L3']:.0f} GB/s from L3 and {rates['DRAM']:.0f} from DRAM; load "
        f"{results['load']:.1f} at the beginning. Preset: {results['preset']}."
    )


def integers(text: str) -> list[int]:
    """`1,10,256`."""
    return [int(part.replace("_", "")) for part in text.split(",")]


def numbers(text: str) -> list[float]:
    """`0.001,0.01`."""
    return [float(part) for part in text.split(",")]
