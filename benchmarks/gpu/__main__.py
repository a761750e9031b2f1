"""Heads on a GPU beside PyTorch: `python -m benchmarks.gpu`.

For each shape, type of W, batch size and k: our heads, and a product with a top k (eager, from a
CUDA graph, by blocks first, compiled; FlashInfer's where it is installed); our draws, and compiled
draws. Medians of warm calls: device time by events with and without a flushed L2 cache, and wall
time. Shares are of what a copy reaches on the same GPU. Writes gpu.json and gpu.md.

Without a GPU it runs under Triton's interpreter (TRITON_INTERPRET=1): that shows that it runs, and
its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from benchmarks.gpu.baselines import Step, draws, searches
from benchmarks.gpu.clock import Clock
from benchmarks.gpu.softmaxes import FitResult, Shape, make
from logitsieve.cli.output import bars
from logitsieve.gpu.device import device_named, name_of
from logitsieve.gpu.heads.draws import GpuExact
from logitsieve.heads._base.draw_options import DrawOptions

OUT = Path(__file__).parents[1] / "results"
SHAPES = "10000x200,15852x512,50257x1024,128256x2048,151936x4096,256000x2048"
TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the raw numbers and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default=SHAPES, help="VxD,... (%(default)s)")
    parser.add_argument("--types", default="float32,bfloat16", help="of W (%(default)s)")
    parser.add_argument("--batches", default="1,8,64,256")
    parser.add_argument("--ks", default="5,64")
    parser.add_argument("--contexts", type=int, default=50_000, help="that the screen is fitted on")
    parser.add_argument("--clusters", type=int, default=400, help="of the screen")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    device = device_named(options.device)
    clock = Clock(device, options.repeats)
    results: Row = {
        "device": name_of(device),
        "torch": torch.__version__,
        "copy_GBps": clock.copy_gbps(),
        "repeats": options.repeats,
        "rows": [],
    }
    kinds = [(shape, dtype) for shape in _shapes(options.shapes) for dtype in _words(options.types)]
    with bars() as progress:
        for number, (shape, dtype) in enumerate(kinds):
            made = make(shape, dtype, options.contexts, options.clusters, device)
            results["rows"] += list(measured(made, dtype, clock, options))
            progress("gpu", number + 1, len(kinds))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (options.out / "gpu.md").write_text(markdown(results), encoding="utf-8")


def _words(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in _words(text)]


def _shapes(text: str) -> list[Shape]:
    return [Shape(*map(int, word.split("x"))) for word in _words(text)]


def measured(
    made: FitResult, dtype: str, clock: Clock, options: argparse.Namespace
) -> Iterator[Row]:
    """A row for each batch size, k and method."""
    stored, device = TYPES[dtype], clock.device
    weight = torch.from_numpy(made.softmax.weight.copy()).to(device, stored)
    bias = torch.from_numpy(made.softmax.bias.copy()).to(device, stored)
    about = {"V": len(weight), "D": weight.shape[1], "type": dtype}
    for batch in _numbers(options.batches):
        hidden = torch.from_numpy(made.test[:batch].copy()).to(device)
        for k in _numbers(options.ks):
            step, asked = Step(weight, bias, hidden.to(stored), k), {**about, "B": batch, "k": k}
            for name, call in searches(step):
                yield {**asked, "method": f"torch {name}", **clock.us(call)}
            for name, head in made.heads.items():
                call = partial(head.topk, hidden, k)
                right = {"p1": precision(made, name, k)} if batch == 1 else {}
                yield {**asked, "method": name, **right, **clock.us(call)}
        yield from _drawn(made, Step(weight, bias, hidden.to(stored), 1), about, clock)


def _drawn(made: FitResult, step: Step, about: Row, clock: Clock) -> Iterator[Row]:
    asked, rows = {**about, "B": len(step.hidden), "k": 0}, len(step.hidden)
    for name, call in draws(step):
        yield {**asked, "method": f"torch {name}", **clock.us(call)}
    seeds: Any = torch.arange(rows, device=clock.device)
    exact = cast(GpuExact, made.heads["exact"])
    draw = partial(exact.draw, step.hidden.float(), DrawOptions(1, seeds))
    yield {**asked, "method": "exact, a draw", **clock.us(draw)}


def precision(made: FitResult, name: str, k: int) -> float:
    """The share of contexts whose best id the head finds."""
    mine, exact = (made.heads[each].topk(made.test, k).ids[:, 0] for each in (name, "exact"))
    return float(np.mean(mine == exact))


def markdown(results: Row) -> str:
    """A line for each method, and how many times as fast as the best of torch it is."""
    lines = [
        f"{results['device']}, torch {results['torch']}; a copy moves {results['copy_GBps']:,.0f} "
        f"GB/s. Medians of {results['repeats']} warm calls, microseconds; k = 0: a draw.",
        "",
        "| V | D | W | B | k | method | device | L2 flushed | wall | over torch | of a pass over W "
        "| P@1 |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        asked = [row[name] for name in ("V", "D", "type", "B", "k")]
        rivals = [
            each["device"]
            for each in results["rows"]
            if each["method"].startswith("torch")
            and asked == [each[name] for name in ("V", "D", "type", "B", "k")]
        ]
        size = row["V"] * row["D"] * TYPES[row["type"]].itemsize
        bound = size / results["copy_GBps"] / 1e3
        p1 = f"{row['p1']:.4f}" if "p1" in row else ""
        lines.append(
            f"| {' | '.join(map(str, asked))} | {row['method']} | {row['device']:.1f} "
            f"| {row['device_flushed']:.1f} | {row['wall']:.1f} "
            f"| {min(rivals) / row['device']:.2f}x | {bound / row['device']:.2f} | {p1} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
