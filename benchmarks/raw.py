"""Raw results: gzipped JSON, the same bytes every time."""

import argparse
import gzip
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


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


def read(path: Path) -> Any:
    """The results; an empty dictionary where there are none yet."""
    return json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}


def write(path: Path, results: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = (json.dumps(results, indent=1) + "\n").encode()
    path.write_bytes(gzip.compress(content, 9, mtime=0))


@cache
def load(name: str) -> Any:
    """Read `benchmarks/results/<name>.json.gz` once."""
    return read(RESULTS / f"{name}.json.gz")
