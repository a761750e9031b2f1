"""Heads on a GPU beside PyTorch's product and top k: `python -m benchmarks.gpu`.

For each shape, type of W, batch size and k, medians of warm calls in microseconds, each waited for:
torch.nn.functional.linear with torch.topk (or a draw by torch.multinomial), and our heads.
Without a GPU PyTorch's CPU device stands for one (TRITON_INTERPRET=1), and times mean nothing.

Shape letters: B rows of hidden_states, C clusters, D hidden size, V vocabulary.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks import raw
from logitsieve.api.requests import Sampling
from logitsieve.api.results import Float32
from logitsieve.gpu.device import device_named, name_of
from logitsieve.gpu.gpu_engine import GpuBackend
from logitsieve.heads import HEADS, Softmax, make_heads
from logitsieve.heads._base.spec import Arrays
from logitsieve.index_builder.fit.svd import preview_arrays
from logitsieve.utils.floats import narrowed

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
MODES, TEST = 400, 1000  # clouds of contexts, as an LSTM's have; contexts to judge by
RANK, DEEP = 256, 20  # of the preview; best ids of a context that its cluster's list must hold
Row = dict[str, Any]
Call = Callable[[], object]


class Measured(NamedTuple):
    """A softmax, its heads on a device, and contexts that decided nothing."""

    softmax: Softmax
    heads: Mapping[str, Any]
    test: Float32


def main(arguments: Sequence[str] | None = None) -> None:
    parser = raw.parser(__doc__, "gpu.json.gz")
    parser.add_argument("--shapes", default="10000x200,50257x1024,128256x2048", help="VxD,...")
    parser.add_argument("--types", default="float32,bfloat16", help="of W: " + ", ".join(TYPES))
    parser.add_argument("--batches", default="1,8,64,256")
    parser.add_argument("--ks", default="5,64")
    parser.add_argument("--contexts", type=int, default=50_000, help="that the screen is fitted on")
    parser.add_argument("--clusters", type=int, default=400, help="of the screen")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments)
    device = device_named(options.device)
    rows = [
        row
        for shape in options.shapes.split(",")
        for dtype in options.types.split(",")
        for row in measure(make(shape, dtype, device, options), dtype, device, options)
    ]
    about = {"device": name_of(device), "torch": torch.__version__, "repeats": options.repeats}
    raw.write(options.out, {**about, "rows": rows})


def make(shape: str, dtype: str, device: torch.device, options: argparse.Namespace) -> Measured:
    """Make W, stored as `dtype`, contexts in MODES clouds, and heads over them."""
    vocab_size, dim = map(int, shape.split("x"))
    random = np.random.default_rng(0)
    weight = random.standard_normal((vocab_size, dim), np.float32)
    hidden_states: Float32 = random.standard_normal((options.contexts + TEST, dim), np.float32)
    modes = random.standard_normal((MODES, dim), np.float32)
    hidden_states += 2 * modes[random.integers(MODES, size=len(hidden_states))]
    softmax = Softmax(narrowed(weight, dtype), np.zeros(vocab_size, np.float32))
    registry, on_device = GpuBackend(device).adapted(HEADS, softmax)
    full: Any = make_heads(registry, on_device, {}, {}, 1)["full"]
    fit = torch.from_numpy(hidden_states[: options.contexts]).to(device)
    parts = {"screen": lists(full, fit, options.clusters), "svd": preview_arrays(softmax, RANK)}
    knobs: dict[str, dict[str, float]] = {"full": {}, "screen": {}, "svd": {}}
    return Measured(
        softmax, make_heads(registry, on_device, parts, knobs, 1), hidden_states[options.contexts :]
    )


def lists(full: Any, fit: Tensor, clusters: int) -> Arrays:
    """Return a screen whose centroids are the first contexts, with all labels of each's contexts.

    It is plainer than what the builder learns, so its precision is measured beside its time.
    """
    centroids = torch.nn.functional.normalize(fit[:clusters])
    owners = (fit @ centroids.T).argmax(dim=1)
    labels = torch.as_tensor(full.topk(fit, DEEP).ids)
    pairs = torch.stack([owners[:, None].expand_as(labels).flatten(), labels.flatten()])
    own, ids = np.unique(pairs.cpu().numpy(), axis=1)
    offsets = np.searchsorted(own, np.arange(len(centroids) + 1)).astype(np.int32)
    return {"centroids": centroids.cpu().numpy(), "offsets": offsets, "ids": ids.astype(np.int32)}


def measure(
    made: Measured, dtype: str, device: torch.device, options: argparse.Namespace
) -> Iterator[Row]:
    """Yield a row for each batch size, k and method; k = 0 is a draw."""
    weight = torch.from_numpy(made.softmax.weight.copy()).to(device, TYPES[dtype])
    bias = torch.from_numpy(made.softmax.bias.copy()).to(device, TYPES[dtype])
    right = {name: {"p1": precision(made, name)} for name in made.heads}
    ks = [int(k) for k in options.ks.split(",")]
    for batch in map(int, options.batches.split(",")):
        rows = made.test[:batch].copy()
        about = {"V": len(weight), "D": weight.shape[1], "type": dtype, "B": len(rows)}
        for method, k, call in calls(made, weight, bias, rows, ks):
            us = median_us(call, device, options.repeats)
            yield {**about, "k": k, "method": method, "us": us, **right.get(method, {})}


def calls(
    made: Measured, weight: Tensor, bias: Tensor, rows: Float32, ks: Sequence[int]
) -> Iterator[tuple[str, int, Call]]:
    """Yield method, k and what is timed."""
    hidden_states = torch.from_numpy(rows).to(weight.device)
    stored, seeds = hidden_states.to(weight.dtype), np.arange(len(rows), dtype=np.uint64)
    for k in ks:
        yield "torch", k, partial(product_and_topk, stored, weight, bias, k)
        for name, head in made.heads.items():
            yield name, k, partial(head.topk, hidden_states, k)
    yield "torch", 0, lambda: linear(stored, weight, bias).softmax(1).multinomial(1)
    yield "full", 0, partial(made.heads["full"].draw, rows, Sampling(1, seeds))


def product_and_topk(hidden_states: Tensor, weight: Tensor, bias: Tensor, k: int) -> object:
    """Do what a step costs without us."""
    return linear(hidden_states, weight, bias).topk(k)


def median_us(call: Call, device: torch.device, repeats: int) -> float:
    """Return the median time of a call, the device's work included, after three warm ones."""
    times = []
    for _ in range(3 + repeats):
        started = perf_counter_ns()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append((perf_counter_ns() - started) / 1e3)
    return statistics.median(times[3:])


def precision(made: Measured, name: str) -> float:
    """Return the share of contexts whose best id the head finds."""
    mine, full = (made.heads[each].topk(made.test, 1).ids for each in (name, "full"))
    return float(np.mean(mine == full))


if __name__ == "__main__":
    main()
