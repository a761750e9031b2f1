from __future__ import annotations

import csv
import math
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.options import (
    ENGINE,
    AsJson,
    EngineName,
    flag,
    idle_cores,
    llama_threads,
    say_engine,
)
from logitsieve.cli.output import bars, print_json, print_table
from logitsieve.evaluation.precision import block_means
from logitsieve.index_builder.config import LONGEST_WINDOW, WINDOW

if TYPE_CHECKING:
    from logitsieve.api.results import Float64
    from logitsieve.llamacpp.divergence import Divergence

NAMES = ("reference", "model")
COLUMNS = ("token", "kl", *(f"{what}_{name}" for what in ("best", "log_prob") for name in NAMES))
QUANTILES = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "99.9 %": 0.999, "largest": 1.0}


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    model: Path = flag(MISSING, "The model, GGUF.", "--model", "-m")
    reference: Path = flag(
        MISSING, "The model to compare it with, GGUF, which has the same vocabulary."
    )
    text: Path = flag(MISSING, "Text that both read: UTF-8, plain or gzipped.")
    window: int = flag(
        WINDOW,
        "Tokens read at once; positions in the second half of them count.",
        min=4,
        max=LONGEST_WINDOW,
    )
    threads: int | None = llama_threads("llama.cpp")
    engine: EngineName = flag("auto", ENGINE)
    csv: Path | None = flag(None, "A file to write with one line for each position.")

    def check(self) -> None:
        if not self.text.is_file():
            raise InvalidRequest("text", self.text, "a text file")
        if self.csv is not None and not self.csv.absolute().parent.is_dir():
            raise InvalidRequest("csv", self.csv, "a file in a folder that exists")


def command(options: CompareOptions, as_json: AsJson = False) -> None:
    """Measure the exact KL divergence of a model's next tokens from another's.

    Shows the divergence in nats, how often both have the same best token, and perplexities, from
    all logits in float64. Standard errors are over contiguous blocks of the text.

    Example: logitsieve compare -m model-q4.gguf --reference model-f16.gguf --text wiki.txt
    """
    options.check()
    divergence = _compared(options)
    if options.csv is not None:
        _write(options.csv, divergence)
    facts = summary(divergence)
    if as_json:
        print_json({name: str(getattr(options, name)) for name in NAMES} | facts)
        return
    no_quantiles = [None] * len(QUANTILES)
    kl, agree, ratio = (facts[name] for name in ("kl", "same_best", "log_perplexity_ratio"))
    print_table(
        f"{options.model} compared with {options.reference}, {facts['positions']:,} positions",
        ["", "mean", "standard error", *QUANTILES],
        [
            ["KL divergence, nats", kl["mean"], kl["error"], *(kl[name] for name in QUANTILES)],
            ["same best token", agree["mean"], agree["error"], *no_quantiles],
            ["log perplexity, less the reference's", ratio["mean"], ratio["error"], *no_quantiles],
        ],
    )
    print("Perplexities: {:.4f} of the reference, {:.4f}".format(*facts["perplexity"]))


def _compared(options: CompareOptions) -> Divergence:
    from logitsieve.index_builder.capture.stream_sample import CountedText, token_windows
    from logitsieve.llamacpp import open_context
    from logitsieve.llamacpp.divergence import compare

    threads = options.threads or idle_cores()
    size: dict[str, Any] = {"positions": options.window, "threads": threads}
    with (
        bars("compare") as progress,
        open_context(options.model, options.engine, **size) as other,
        open_context(options.reference, other.host.engine, **size) as one,
    ):
        say_engine(one, options.engine)
        window = min(options.window, one.trained_positions, other.trained_positions)
        counted = CountedText(options.text, partial(one.tokenize, begin=False, special=False))

        def report(stage: str, seen: int, _: int) -> None:
            progress(stage, seen, max(seen, counted.tokens))

        windows = token_windows(options.text, counted.tokenize, one.begin, window)
        return compare(one, other, windows, report)


def summary(divergence: Divergence) -> dict[str, Any]:
    later = -divergence.log_probs
    return {
        "positions": len(divergence.kl),
        "kl": _mean(divergence.kl)
        | {name: float(np.quantile(divergence.kl, share)) for name, share in QUANTILES.items()},
        "same_best": _mean(divergence.agree),
        "perplexity": [math.exp(min(one.mean(), 700.0)) for one in later],
        "log_perplexity_ratio": _mean(later[1] - later[0]),
    }


def _mean(values: Float64) -> dict[str, float]:
    blocks = block_means(values)
    error = float(blocks.std(ddof=1)) / math.sqrt(len(blocks)) if len(blocks) > 1 else 0.0
    return {"mean": float(values.mean()), "error": error}


def _write(path: Path, divergence: Divergence) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        columns = divergence.tokens, divergence.kl, *divergence.best, *divergence.log_probs
        writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
