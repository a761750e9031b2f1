"""Raw results in JSON; gzipped, the same bytes every time, where the file's name ends in .gz."""

import gzip
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def read(path: Path) -> Any:
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


def write(path: Path, results: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = (json.dumps(results, indent=1) + "\n").encode()
    path.write_bytes(gzip.compress(content, 9, mtime=0) if path.suffix == ".gz" else content)
