"""Compile the kernels that the builder and the server use: `python -m demo.warm FOLDER`.

A process of its own does it, into the common cache, while the model reads.
"""

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np


@contextmanager
def compiling(scratch: Path) -> Iterator[None]:
    """Compile in the background, until the end of the block or longer."""
    command = [sys.executable, "-m", "demo.warm", str(scratch / "warm" / "1")]
    with subprocess.Popen(command) as process:
        try:
            yield
        except BaseException:
            process.kill()
            raise


def main(folder: Path) -> None:
    """Build a tiny index and warm it like a server."""
    from logitsieve.decoding import LocalDecoder
    from logitsieve.index_builder import BuildConfig, build

    logging.disable(logging.WARNING)  # that a tiny screen is not precise
    rng = np.random.default_rng(0)
    weight, contexts = (rng.standard_normal((rows, 16), np.float32) for rows in (256, 200))
    config = BuildConfig(clusters=2, rounds=0, kmeans_iterations=1, dtype="bfloat16")
    LocalDecoder(build(weight, None, contexts, folder, config=config, progress=None)).warm()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
