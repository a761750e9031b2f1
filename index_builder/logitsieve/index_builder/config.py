"""Options of builds, sweeps and captures; each field is an option of a command."""

from dataclasses import dataclass
from typing import Literal

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import FALLBACKS
from logitsieve.utils.floats import STORED
from logitsieve.utils.options import check_ranges, option

AUTO: Literal["auto"] = "auto"
GIVEN: Literal["given"] = "given"  # keeps the dtype of W if STORED has it

JUDGES = "Most held-out contexts that judge, in contiguous blocks spread over all of them."
WINDOW, LONGEST_WINDOW = 256, 1 << 20


@dataclass(frozen=True, kw_only=True)
class ScreenConfig:
    """Options of the fit of a screen (Chen et al. 2019, Algorithm 1)."""

    clusters: int = option(100, "Clusters, C (the paper's r).", 1, 65_535)
    budget: float | None = option(
        None, "Candidates a row on average, B; unset keeps every label that pays.", 1, 2**31 - 1
    )
    labels: int = option(5, "Exact best ids of each context that a list should hold, k'.", 1, 64)
    rounds: int = option(
        8, "Rounds of training after the first lists, T; 0 is plain k-means.", 0, 1000
    )
    steps: int = option(150, "Gradient steps in each round.", 1, 1_000_000)
    batch_rows: int = option(1024, "Contexts in each gradient step.", 1, 1_000_000)
    learning_rate: float = option(
        0.03, "Step of the optimizer, in units of the centroids' root mean square.", 1e-6, 10
    )
    waste_weight: float = option(
        3e-4, "Cost of a candidate that is no label, a missed label being 1 (lambda).", 0, 1
    )
    overrun_weight: float = option(
        10.0, "Cost of each candidate a row above the budget while training (gamma).", 0, 1e6
    )
    guard: float | None = option(
        None,
        "Share of each cluster's contexts, the farthest from its centroid, that is always left to"
        " the fallback of the screen: for precision on contexts of another kind. Unset is 0.01 with"
        " a target precision, else 0.",
        0,
        0.99,
    )
    kmeans_iterations: int = option(25, "Iterations of spherical k-means.", 1, 10_000)
    sample_mib: int = option(
        256, "Memory for the contexts that k-means and training see, in MiB.", 1, 1 << 24
    )

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class BuildConfig(ScreenConfig):
    """All options of `build`."""

    dtype: Literal["given", "float32", "float16", "bfloat16"] = option(
        GIVEN,
        "What W is stored as, rounded once; given: float16 and bfloat16 as they are, anything else"
        " as float32.",
    )
    clusters_tried: tuple[int, ...] = option(
        (32, 50, 70, 100, 140, 200, 400),
        "Numbers of clusters that a search for a target precision tries.",
        1,
        65_535,
    )
    fallback: Literal["auto", "full", "sketch", "svd"] = option(
        "auto",
        "Head that answers the rows which a screen, or another head, leaves. auto: sketch if it is"
        " built, else full, or svd where it is built, faster, and meets the target precision.",
    )
    heldout_rows: int = option(50_000, JUDGES, 1, 10**9)
    lsh_recall: float = option(
        0.9, "Share of held-out contexts whose best word the hash tables of lsh find.", 0.01, 1
    )
    lsh_tables: int = option(256, "Most hash tables of lsh.", 1, 4096)
    lsh_memory: float = option(
        1.0, "Most memory of the hash tables of lsh, relative to the softmax.", 1e-3, 1000
    )
    svd_width: int | None = option(
        None, "Rotated dimensions that svd stores; unset is D/4, at most 256.", 1, 65_535
    )
    reproducible: bool = option(
        False,
        "Choose nothing by measured times, so that equal inputs give equal files, except for"
        " calibration.json. Not with a target precision.",
    )
    seed: int = option(0, "Seed of k-means, of the sample and of training.", 0, 2**31 - 1)
    threads: int = option(1, "CPU threads.", 1, 1024)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in (allowed := (GIVEN, *STORED)):
            raise InvalidRequest("dtype", repr(self.dtype), ", ".join(allowed))
        if self.fallback not in (allowed := (AUTO, *FALLBACKS)):
            raise InvalidRequest("fallback", repr(self.fallback), ", ".join(allowed))


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """Options of `tune`."""

    rows: int = option(10_000, JUDGES, 1, 10**9)
    minutes: float = option(
        10.0, "Minutes after which only settings stored in the index are begun.", 0, 1e5
    )

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class CaptureConfig:
    """Options of a capture."""

    max_rows: int = option(200_000, "Contexts kept, spread over all that the model sees.", 1, 10**9)
    shard_rows: int = option(65_536, "Contexts in one file.", 1, 10**9)
    seed: int = option(0, "Draws which row of each stretch is kept.", 0, 2**31 - 1)
    dtype: Literal["float16", "float32"] = option("float16", "What the contexts are stored as.")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.dtype not in ("float16", "float32"):
            raise InvalidRequest("dtype", self.dtype, "float16 or float32")
