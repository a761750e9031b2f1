"""An index fitted on one domain of the translation model, judged on unseen text of both.

    python -m benchmarks.domains --every 6 --guard 0.5 --out domains.json

Needs shared/data/nmt-de-en. Each domain takes some minutes at --every 6, as in docs/building.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.race.nmt_contexts import capture, load_model_file, read_pairs
from logitsieve.evaluation import evaluate, us_per_row
from logitsieve.index_builder import BuildConfig, build
from logitsieve.index_builder.calibrate import machine
from logitsieve.utils.options import no_progress

DATA = Path(__file__).parents[2] / "shared" / "data" / "nmt-de-en"
HELP_PAIRS = 26_886  # of train.tsv.gz, which come before the captions
TARGET = {"p1": 0.989, "p5": 0.993}
TIMED_K = 5
Contexts = Mapping[str, tuple[np.ndarray, np.ndarray]]  # domain -> (to fit on, unseen)


def captured(every: int) -> tuple[Any, Contexts]:
    """The model, and contexts of every so-manieth pair of each domain."""
    module = load_model_file(DATA / "nmt_model.py")
    model = module.Translator.load(DATA)
    pairs = read_pairs(DATA / "train.tsv.gz")
    parts = {
        "software help": (pairs[:HELP_PAIRS], "test-software.tsv"),
        "image captions": (pairs[HELP_PAIRS:], "test.tsv"),
    }
    return model, {
        name: (
            capture(module, model, fit[::every], name, no_progress),
            capture(module, model, read_pairs(DATA / file), name, no_progress),
        )
        for name, (fit, file) in parts.items()
    }


def judged(
    weight: np.ndarray, bias: np.ndarray, contexts: Contexts, fitted: str, config: BuildConfig
) -> Iterator[dict[str, Any]]:
    """Build on one domain; a line for each domain judged."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "nmt" / "1"
        index = build(
            weight, bias, contexts[fitted][0], out, target_precision=TARGET, config=config
        )
        screen, exact = index.head("screen"), index.head("exact")
        for domain, (_, unseen) in contexts.items():
            rows = unseen.astype(np.float32)
            found = evaluate(screen, exact, [rows], (1, 5))
            us = [us_per_row(head, rows, TIMED_K, 1) for head in (exact, screen)]
            line = {
                "fitted": fitted,
                "judged": domain,
                "knobs": dict(screen.knobs),
                "precision": {k: vars(value) for k, value in found.precision.items()},
                "coverage": found.coverage[TIMED_K],
                "us_per_row": dict(zip(("exact", "screen"), us, strict=True)),
            }
            print(json.dumps(line), flush=True)
            yield line


def main() -> None:
    """Build on each domain, judge on both, print a line for each and write them all as JSON."""
    parser = argparse.ArgumentParser(description="Precision on a domain that was not fitted.")
    parser.add_argument("--every", type=int, default=6, help="one pair in so many is captured")
    parser.add_argument("--guard", type=float, default=None, help="BuildConfig.guard")
    parser.add_argument("--out", type=Path, default=Path("domains.json"))
    options = parser.parse_args()
    model, contexts = captured(options.every)
    weight, bias = (array.detach().numpy() for array in model.output.parameters())
    config = BuildConfig(guard=options.guard)
    lines = [line for fitted in contexts for line in judged(weight, bias, contexts, fitted, config)]
    asked = {"target": TARGET, "every": options.every, "guard": options.guard}
    text = json.dumps({"machine": machine(), **asked, "lines": lines}, indent=1)
    options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
