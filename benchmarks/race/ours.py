"""Every head of the registry as a method of the race: built once into the cache, then swept."""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.race.datasets import Dataset
from benchmarks.race.methods import NO_KNOBS, Entrant, Knobs, Method
from benchmarks.race.peers.fgd import BUILD_EF, LINKS, GraphHead, graph_arrays
from benchmarks.race.prepare import CACHE
from benchmarks.raw import grades_of
from logitsieve.api.results import Float32
from logitsieve.heads import HEADS, FullHead, Head, LshHead, Softmax
from logitsieve.index import open_index
from logitsieve.index_builder import BuildConfig
from logitsieve.index_builder.fitting import FULL, SKETCH
from logitsieve.index_builder.pipeline import FITS
from logitsieve.index_builder.reduction import augmented, draw_planes, hash_vectors, query_planes
from logitsieve.kernels.retrieval.hash_tables import bucket_tables
from logitsieve.utils.options import Progress

TARGETS = ({"p1": 0.98, "p5": 0.95}, {"p1": 0.998, "p5": 0.99})  # a screen is learnt for each
CLUSTERS_TRIED = (50, 100, 200)
RACED = tuple(name for name in HEADS if name == FULL or name in FITS)
LEARNT = (FULL, SKETCH, "screen")  # what the first target is asked of
LARGE = 100_000_000  # numbers of W
SECONDS_FILE = "build-seconds.txt"
KINDS = {
    "full": "dense float32",
    SKETCH: "bounds of all logits",
    "screen": "lists by context",
    "frequency": "lists by context",
    "svd": "low rank",
    "lsh": "approximate search",
}
FGD, LSH_MIPS = "FGD", "LSH-MIPS"  # as Chen et al. 2019 compare with them
LSH_BITS, LSH_TABLES = (6, 8, 10, 12), 256


class HeadMethod(Method):
    """A head at one thread and at two; knobs that `fixed` names are not swept."""

    def __init__(
        self,
        name: str,
        kind: str,
        built: Knobs,
        heads: Mapping[int, Head],
        nbytes: int,
        fixed: Knobs = NO_KNOBS,
    ) -> None:
        self.name, self.kind, self.built, self.nbytes = name, kind, built, nbytes
        self._heads = heads
        self._now = heads[1].with_knobs(**fixed)
        self.settings = points(self._now, fixed)

    def set_knobs(self, threads: int, knobs: Knobs) -> None:
        super().set_knobs(threads, knobs)
        self._now = self._heads[threads].with_knobs(**knobs)

    def topk(self, hidden_states: Float32, k: int) -> np.ndarray:
        return self._now.topk(hidden_states, k).ids


def points(head: Head, fixed: Knobs) -> list[Knobs]:
    """The stored point, and every combination of the values that each knob says to try.

    A head holds knobs to what it has (no more tables than were built): each point once.
    """
    stored, table = dict(head.knobs), head.knob_table
    values = (
        (stored[name],) if name in fixed else knob.tried or (stored[name],)
        for name, knob in table.items()
    )
    heads = (head.with_knobs(**dict(zip(table, point, strict=True))) for point in product(*values))
    found = [stored, *(dict(each.knobs) for each in heads)]
    return [point for place, point in enumerate(found) if point not in found[:place]]


def of_indexes(
    data: Dataset, threads: Sequence[int], wanted: Sequence[str], rebuild: bool, progress: Progress
) -> Iterator[Entrant]:
    """Every head `wanted`, of an index for the last of TARGETS; its screens of one for each."""
    for number, target in enumerate(TARGETS, start=1):
        last = number == len(TARGETS)
        names = [name for name in wanted if last or name == "screen"]
        if not names or (not last and data.weight.size > LARGE):
            continue  # labels alone take minutes: one screen is enough
        built = _to_build(data, wanted) if last else LEARNT
        path, seconds = _built(data, number, built, target, progress, rebuild)
        opened = {count: open_index(path, threads=count) for count in sorted({1, *threads})}
        manifest = opened[1].manifest
        for name in names:
            asked = {"p1 asked": target["p1"]} if name == "screen" else {}
            part = manifest.heads[name].part
            size = manifest.parts[part].size if part else 0
            heads = {count: index.head(name) for count, index in opened.items()}
            graded = grades_of(opened[1]) if name == SKETCH else {}
            asking: dict[str, Knobs] = {
                label: {"max_error": grade} for label, grade in graded.items()
            }
            for label, fixed in (asking or {name: NO_KNOBS}).items():
                title = f"logitsieve {label}"
                make = partial(HeadMethod, title, KINDS[name], asked, heads, size, fixed)
                yield Entrant(title, make, seconds)


def fgd(softmax: Softmax, best_ids: Callable[[], np.ndarray], threads: Sequence[int]) -> HeadMethod:
    """FGD as published: the graph over rows of equal norm, the most frequent best words first."""
    arrays = graph_arrays(softmax, best_ids())
    built = {"M": LINKS, "ef_construction": BUILD_EF}
    return _made(FGD, GraphHead, softmax, arrays, built, threads)


def lsh_mips(softmax: Softmax, bits: int, threads: Sequence[int]) -> HeadMethod:
    """LSH-MIPS: SimHash of rows of equal norm, one bucket a table (Neyshabur and Srebro 2015)."""
    planes = draw_planes(LSH_TABLES, bits, softmax.dim, seed=0)
    offsets, ids = bucket_tables(hash_vectors(augmented(softmax), planes, 1), bits)
    own, shifts = query_planes(planes, beta=1.0)
    arrays = {"planes": own, "shifts": shifts, "offsets": offsets, "ids": ids}
    fixed = {"probes": 1, "candidates": 0}
    return _made(LSH_MIPS, LshHead, softmax, arrays, {"bits": bits}, threads, fixed)


def _made(
    name: str,
    kind: type[Head],
    softmax: Softmax,
    arrays: dict[str, np.ndarray],
    built: Knobs,
    threads: Sequence[int],
    fixed: Knobs = NO_KNOBS,
) -> HeadMethod:
    full = FullHead(softmax)
    heads = {
        count: kind.from_arrays(softmax, arrays, fallback=full, threads=count, knobs={})
        for count in {1, *threads}
    }
    size = sum(each.nbytes for each in arrays.values())
    return HeadMethod(name, KINDS["lsh"], built, heads, size, fixed)


def _to_build(data: Dataset, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return all heads if an index of them exists, else those that a race of `wanted` needs."""
    if _folder(data, RACED).exists():
        return RACED
    needed = {FULL, *wanted, *(LEARNT if "screen" in wanted else ())}
    return tuple(name for name in RACED if name in needed)


def _folder(data: Dataset, heads: Sequence[str]) -> Path:
    mark = hashlib.sha256(" ".join(heads).encode()).hexdigest()[:8]
    return CACHE / "indexes" / f"{data.index}-{mark}"


def _built(
    data: Dataset,
    version: int,
    heads: tuple[str, ...],
    target: dict[str, float],
    progress: Progress,
    rebuild: bool = False,
) -> tuple[Path, float]:
    """The index, and the seconds it took when it was built; one is kept for each set of heads."""
    folder = _folder(data, heads)
    path, note = folder / str(version), folder / f"{version}-{SECONDS_FILE}"
    if rebuild and path.exists():
        shutil.rmtree(path)
    if not path.exists():
        start = time.monotonic()
        data.build(
            path,
            heads=heads,
            target_precision=target if "screen" in heads else None,
            config=BuildConfig(clusters_tried=CLUSTERS_TRIED),
            progress=progress,
            best_effort="screen" in heads,
        ).close()
        note.write_text(f"{time.monotonic() - start:.1f}\n", encoding="utf-8")
    return path, float(note.read_text(encoding="utf-8"))
