"""Small builds with bytes to compare."""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from logitsieve.index import Index
from logitsieve.index_builder import BuildConfig, build
from tests.index.samples import snapshot
from tests.index_builder.clustered import make_contexts
from tests.synthetic import make_softmax

V, D, ROWS = 700, 16, 9000
CONFIG = BuildConfig(
    clusters=8, rounds=2, steps=10, batch_rows=64, kmeans_iterations=5, reproducible=True
)


class Watched(ThreadPoolExecutor):
    """Makes one call after another; `before` sees each of them."""

    def __init__(self, before: Callable[[Any], object]) -> None:
        super().__init__(1)
        self._before = before

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        self._before(call)
        future = super().submit(call, *args, **options)
        future.exception()
        return future


def build_small(out: Path, executor: Executor | None = None, **options: Any) -> Index:
    """Nine blocks of labels to fit, one held out, and four that judge."""
    softmax = make_softmax(vocab_size=V, dim=D)
    weight, contexts = softmax.weight.copy(), make_contexts(ROWS + 1000)
    weight[300:340] = weight[:40]  # ties
    given = {"config": CONFIG, "heldout": contexts[ROWS:], "progress": None, **options}
    return build(weight, softmax.bias, contexts[:ROWS], out, **given, executor=executor)


def files(index: Index) -> dict[str, bytes]:
    """The bytes of all files but measurements of time."""
    found = snapshot(index.path)
    del found["calibration.json"]
    return found


def judged(index: Index) -> list[Any]:
    """What was measured of the heads, but for times."""
    assert index.calibration is not None
    points: list[Any] = index.calibration["points"]
    for point in points:
        for measured in (point, point.get("steps", {})):
            measured.pop("us_per_row", None)
        point.pop("draw_us", None)
    return points
