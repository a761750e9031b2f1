"""The benchmark of GPUs runs to its end on PyTorch's CPU device; its times mean nothing here."""

from pathlib import Path

from benchmarks import raw
from benchmarks.gpu import main

ARGUMENTS = (
    "--shapes 330x16 --types bfloat16 --batches 2 --ks 5 --clusters 2 --contexts 8 --repeats 1"
)


def test_every_method_has_its_row(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json.gz"
    main([*ARGUMENTS.split(), "--out", str(out)])
    rows = raw.read(out)["rows"]
    methods = [(row["method"], row["k"]) for row in rows]
    assert methods == [(name, 5) for name in ("torch", "full", "screen", "svd")] + [
        ("torch", 0), ("full", 0),
    ]  # fmt: skip
    assert rows[1]["p1"] == 1.0
