"""Raw results: gzipped JSON, the same bytes every time."""

import argparse
import gzip
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from logitsieve.heads.sketch import GRADES
from logitsieve.index import Index

# Every machine at rest that was measured here read each level at twice this rate or faster.
LEAST_GBPS = {"L1": 20.0, "L2": 20.0, "DRAM": 3.0}
RESULTS = Path(__file__).parent / "results"
GRADED = {f"sketch {grade:g}": grade for grade in GRADES}  # of `max_error`, by label
EARLIER = dict(zip(("certified", "assured", "estimated"), GRADED, strict=True)) | {"exact": "full"}


def parser(about: str | None, out: str) -> argparse.ArgumentParser:
    """A parser of a benchmark's options, with `--out`: a file or folder of RESULTS by default."""
    spec = sys.modules["__main__"].__spec__
    made = argparse.ArgumentParser(
        prog=f"python -m {spec.name.removesuffix('.__main__')}" if spec else None,
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--out", type=Path, default=RESULTS / out, help="where raw results go")
    return made


def grades_of(index: Index) -> dict[str, float]:
    """Those of GRADED that the index's sketch has."""
    heads = (index.head("sketch", max_error=grade) for grade in GRADES * ("sketch" in index.heads))
    held = {head.max_error for head in heads}
    return {label: grade for label, grade in GRADED.items() if grade in held}


def read(path: Path) -> Any:
    """The results, with today's labels; an empty dictionary where there are none yet."""
    text = gzip.decompress(path.read_bytes()).decode() if path.exists() else "{}"
    labels = rf'("|\blogitsieve )({"|".join(EARLIER)})\b(?! by)'
    return json.loads(re.sub(labels, lambda label: label[1] + EARLIER[label[2]], text))


def write(path: Path, results: Any) -> None:
    """Write the results; SystemExit if they are to be kept and come from a strangled machine."""
    if RESULTS in path.parents and (slow := sorted(strangled(results))):
        raise SystemExit(
            f"error: this machine reads {', '.join(slow)}, so other work strangles it: nothing was "
            f"written to {path}; measure again, or name another place by --out"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    content = (json.dumps(results, indent=1) + "\n").encode()
    path.write_bytes(gzip.compress(content, 9, mtime=0))


def strangled(results: Any) -> Iterator[str]:
    """Yield the levels of memory that machines of these results read too slowly."""
    if isinstance(results, dict):
        for level, rate in results.get("read_GBps", {}).items():
            if rate < LEAST_GBPS.get(level, 0.0):
                yield f"{level} at {rate:.1f} GB/s (at least {LEAST_GBPS[level]:g})"
        for each in results.values():
            yield from strangled(each)


@cache
def load(name: str) -> Any:
    """Read `benchmarks/results/<name>.json.gz` once."""
    return read(RESULTS / f"{name}.json.gz")
