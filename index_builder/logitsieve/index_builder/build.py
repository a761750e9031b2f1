"""`build`: from a frozen softmax and the contexts it meets to an index directory."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike
from logitsieve.evaluation.precision import BLOCKS
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.data.arrays import stored_matrix, vector
from logitsieve.index_builder.data.contexts import Contexts, Source, open_contexts
from logitsieve.index_builder.data.gguf import gguf_output_layer, is_gguf
from logitsieve.utils.environment import require
from logitsieve.utils.options import ProgressOption, to_progress
from logitsieve.utils.stored import StoredMatrix

if TYPE_CHECKING:
    from logitsieve.index import Index

SCRATCH = ".tmp-build-"
LEAST_P1 = 0.95  # of a default head that was built for no target: below it, a warning

SAME_TEXT = (
    "%s: no `heldout` contexts of unseen text are given. The last %d contexts judge, and each miss "
    "counts twice, since text that the model was trained on is easier (docs/building.md)"
)

logger = logging.getLogger(__name__)


def build(
    weight: ArrayLike | StoredMatrix,
    bias: ArrayLike | None,
    contexts: Source | None,
    out: Path | str,
    vocabulary: Sequence[str] | None = None,
    heads: Sequence[str] | None = None,
    target_precision: Mapping[str, float] | None = None,
    config: BuildConfig | None = None,
    progress: ProgressOption = "auto",
    heldout: Source | None = None,
    best_effort: bool = False,
    executor: Executor | None = None,
) -> Index:
    """Fit `heads` to logits `weight` [V, D] @ h + `bias` [V], write the index `out`, and open it.

    `heads` are exact, screen and certified unless named. Without `contexts`, None, they are exact
    and certified, with bounds for contexts of any direction (wider than those for contexts like
    yours), no other can be built, and nothing is measured.
    `out` is <name>/<version> and must not exist. `bias` None is zeros. Inputs are arrays, or files
    as arrays.py names them; `weight` may be a GGUF file, which holds the bias and the vocabulary. A
    `weight` of a half type, or in blocks (a StoredMatrix), is kept as it is unless `config.dtype`
    says otherwise; every head is fitted to the stored values. `heldout` are contexts of text that
    the model has not seen; without them the last tenth of `contexts` judges, and each of its misses
    counts twice against a target. `target_precision`, {"p1": 0.998, "p5": 0.99}, chooses clusters,
    labels, budget, probes and the rows left to the fallback for the least measured time;
    unless `best_effort`, InvalidRequest if so few held-out contexts cannot show that, and
    TargetNotReached if no screen meets it. `executor` makes the calls that do not depend on each
    other: blocks of contexts against W, mostly; without one, `config.threads` threads do.
    `progress` gets (stage, done, total); "auto" prints lines of `StageLines` to stderr, None
    nothing. InvalidRequest names the argument at fault, also a `weight` that is written to
    meanwhile. If it raises, nothing is written.
    """
    require("builder", "numba", "torch", "faiss", "threadpoolctl")
    from logitsieve.heads import Softmax
    from logitsieve.index import new_path
    from logitsieve.index.files import remove_stale
    from logitsieve.index_builder import pipeline  # torch and faiss are loaded only now
    from logitsieve.index_builder.workers import Workers, in_threads

    config, progress = config or BuildConfig(), to_progress(progress, "build")
    names = pipeline.check_heads(heads, target_precision is not None, contexts is not None)
    if contexts is None and heldout is not None:
        raise InvalidRequest("heldout", "contexts that judge", "`contexts` to fit to as well")
    if best_effort and target_precision is None:
        raise InvalidRequest("best_effort", True, "a target_precision that it may miss")
    out = new_path(out)  # refused before hours of fitting, not after
    if is_gguf(weight):
        weight, bias, vocabulary = gguf_output_layer(weight, bias, vocabulary)
    stored = stored_matrix(weight, config.dtype)
    softmax = Softmax(stored, vector(bias, stored.vocab_size))
    # Hashed before anything reads W: what is fitted and what is written have to be these numbers.
    logger.debug("%s: building from the matrix %s", out, softmax.sha256)
    if target_precision is not None:
        target_precision = pipeline.checked_target(target_precision, softmax.vocab_size)
    if vocabulary is not None and len(vocabulary) != softmax.vocab_size:
        raise InvalidRequest(
            "vocabulary", f"{len(vocabulary)} words", f"V = {softmax.vocab_size}, one for each id"
        )
    if config.reproducible and target_precision is not None:
        allowed = "a build without a target_precision, whose search goes by measured times"
        raise InvalidRequest("reproducible", True, allowed)
    beside = next(folder for folder in out.parents if folder.is_dir())  # a failed build makes none
    remove_stale(beside, SCRATCH)
    with (
        tempfile.TemporaryDirectory(prefix=SCRATCH, dir=beside) as folder,
        in_threads(executor, config.threads) as pool,
    ):
        scratch = Path(folder)
        train = judged = Contexts([])
        if contexts is not None:
            train = open_contexts(contexts, softmax.dim)
        if contexts is not None and heldout is None:
            train, judged = train.split()
            if target_precision is not None:
                logger.warning(SAME_TEXT, out, judged.rows)
        elif heldout is not None:
            judged = open_contexts(heldout, softmax.dim, "heldout")
        judged = judged.spread(config.heldout_rows, BLOCKS)
        if target_precision is not None and not best_effort:
            pipeline.refuse_unprovable(target_precision, judged.rows, heldout is not None)
        inputs = pipeline.BuildInputs(
            softmax=softmax,
            train=train,
            heldout=judged,
            config=config,
            target=target_precision,
            unseen=heldout is not None,
            best_effort=best_effort,
            progress=progress,
            workers=Workers(pool, scratch),
        )
        index = pipeline.run(inputs, names, vocabulary, out, scratch)
    if target_precision is None:
        _warn_of_misses(index)
    return index


def _warn_of_misses(index: Index) -> None:
    """Log a warning where the default head, built for no target, misses too many best ids."""
    for point in (index.calibration or {}).get("points", ()):
        p1 = point["precision_at"].get("1", 1.0)
        if point["head"]["name"] == index.default_head and p1 < LEAST_P1:
            said = (
                "%s: the head %s, which answers by default, finds the best id of %.1f %% of the "
                "held-out contexts; build with a target_precision for more"
            )
            logger.warning(said, index.path, index.default_head, 100 * p1)
            return
