"""Make the large datasets of the race, once: `python -m benchmarks.race.prepare nmt`, and so on.

All read ../shared, which is not part of this repository; without it only `demo` and
published models can be raced. A dataset that is there already is not made again.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.race import language_models, nmt_contexts
from logitsieve.cli.output import bars
from logitsieve.utils.options import Progress

SHARED = Path(__file__).parents[3] / "shared"
CACHE = Path.home() / ".cache" / "logitsieve-race"
PREPARED: dict[str, Callable[[Path, Path, Progress], None]] = {
    "nmt": nmt_contexts.prepare,
    **{name: partial(language_models.prepare, name) for name in language_models.MODELS},
}


def prepared(name: str, shared: Path, cache: Path) -> Path:
    """The file of a dataset that has to be made first; makes it if it is not there."""
    path = cache / f"{name}.npz"
    if not path.exists():
        if not shared.is_dir():
            raise SystemExit(f"{shared} is absent: {name} is made of it; `demo` needs nothing")
        cache.mkdir(parents=True, exist_ok=True)
        with bars() as progress:
            PREPARED[name](shared, cache, progress)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PREPARED)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(prepared(options.name, SHARED, CACHE))


if __name__ == "__main__":
    main()
