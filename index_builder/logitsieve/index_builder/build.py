"""The function `build`."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike
from logitsieve.evaluation.precision import BLOCKS
from logitsieve.index_builder.arrays import gguf_output_layer, is_gguf, stored_matrix, vector
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.contexts import Contexts, Source, open_contexts
from logitsieve.utils.environment import require
from logitsieve.utils.options import ProgressOption, to_progress
from logitsieve.utils.stored import StoredMatrix

if TYPE_CHECKING:
    from logitsieve.heads import Softmax
    from logitsieve.index import Index
    from logitsieve.index_builder.pipeline import BuildInputs

SCRATCH = ".tmp-build-"
LEAST_P1 = 0.95  # a default head built without a target warns if its P@1 is lower

SAME_TEXT = (
    "%s: no `heldout` contexts of unseen text are given. The last tenth judges, and each miss "
    "counts twice, since text that the model was trained on is easier (docs/building.md)"
)
ANY_DIRECTION = "%s: without contexts bounds are for any direction, wider than for a model's own"

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
    heldout: Source | Sequence[Source] | None = None,
    best_effort: bool = False,
    executor: Executor | None = None,
) -> Index:
    """Fit `heads` to logits `weight` [V, D] @ h + `bias` [V], write the index `out`, and open it.

    `weight` is an array, a file (see arrays.py), a GGUF file with its bias and vocabulary, or a
    StoredMatrix. Half types and blocks are stored unchanged unless `config.dtype` is set. `out` is
    a new folder <name>/<version>.

    `heads` default to full, screen and sketch; the screen is left out, with a warning, if the
    sketch is cheaper. Without `contexts`, full and sketch are built, unmeasured and with wider
    bounds. `heldout` are contexts of unseen texts, of which the worst decides. Without them, the
    last tenth of `contexts` judges, and misses count twice.

    `target_precision`, such as {"p1": 0.998, "p5": 0.99}, searches for the cheapest screen that
    meets it. Unless `best_effort`: InvalidRequest if the held-out contexts are too few to show it,
    TargetNotReached if no screen does. `executor` runs independent calls (by default, threads).
    `progress` gets (stage, done, total); "auto" prints. InvalidRequest names the argument.
    """
    require("builder", "numba", "threadpoolctl")
    from logitsieve.index import new_path
    from logitsieve.index_builder import pipeline

    config, target = config or BuildConfig(), target_precision
    names = pipeline.check_heads(heads, target is not None, contexts is not None, config.fallback)
    if contexts is None and heldout is not None:
        raise InvalidRequest("heldout", "contexts that judge", "`contexts` to fit to as well")
    if best_effort and target is None:
        raise InvalidRequest("best_effort", True, "a target_precision that it may miss")
    if config.reproducible and target is not None:
        allowed = "a build without a target_precision, whose search goes by measured times"
        raise InvalidRequest("reproducible", True, allowed)
    out = new_path(out)
    parent = _swept_parent(out)
    softmax, vocabulary = _output_layer(weight, bias, vocabulary, config.dtype)
    # The hash comes first: all numbers that are fitted or written must be the hashed ones.
    logger.debug("%s: building from the matrix %s", out, softmax.sha256)
    if target is not None:
        target = pipeline.checked_target(target, softmax.vocab_size)
    train, texts = _opened(contexts, heldout, softmax, config.heldout_rows)
    if target is not None and not best_effort:
        pipeline.refuse_unprovable(target, min(text.rows for text in texts), heldout is not None)
    if contexts is None:
        logger.warning(ANY_DIRECTION, out)
    elif heldout is None and target is not None:
        logger.warning(SAME_TEXT, out)
    inputs = pipeline.BuildInputs(
        softmax=softmax,
        train=train,
        heldout=Contexts.joined(texts),
        config=config,
        target=target,
        named=heads is not None,
        unseen=heldout is not None,
        texts=[slice(*ends) for ends in pairwise(accumulate((t.rows for t in texts), initial=0))],
        best_effort=best_effort,
        progress=to_progress(progress, "build"),
    )
    return _run(inputs, names, vocabulary, out, parent, executor)


def _swept_parent(out: Path) -> Path:
    """Return the folder for scratch, without what killed builds left there."""
    from logitsieve.index.files import remove_stale

    parent = next(folder for folder in out.parents if folder.is_dir())
    remove_stale(parent, SCRATCH)
    return parent


def _output_layer(
    weight: ArrayLike | StoredMatrix,
    bias: ArrayLike | None,
    vocabulary: Sequence[str] | None,
    dtype: str,
) -> tuple[Softmax, Sequence[str] | None]:
    from logitsieve.heads import Softmax

    if is_gguf(weight):
        weight, bias, vocabulary = gguf_output_layer(weight, bias, vocabulary)
    stored = stored_matrix(weight, dtype)
    softmax = Softmax(stored, vector(bias, stored.vocab_size, stored.dim))
    if vocabulary is not None and len(vocabulary) != softmax.vocab_size:
        raise InvalidRequest(
            "vocabulary", f"{len(vocabulary)} words", f"V = {softmax.vocab_size}, one for each id"
        )
    return softmax, vocabulary


def _opened(
    contexts: Source | None,
    heldout: Source | Sequence[Source] | None,
    softmax: Softmax,
    heldout_rows: int,
) -> tuple[Contexts, list[Contexts]]:
    """Return the contexts to fit on, and each text's held-out contexts."""
    dim, train = softmax.dim, Contexts([])
    if contexts is not None:
        train = open_contexts(contexts, dim, vocab_size=softmax.vocab_size)
    if heldout is not None:
        texts = [open_contexts(each, dim, "heldout") for each in _texts(heldout)]
    elif contexts is None:
        texts = [train]
    else:
        train, judged = train.split()
        texts = [judged]
    return train, [text.spread(heldout_rows // len(texts), BLOCKS) for text in texts]


def _texts(heldout: Source | Sequence[Source]) -> Sequence[Source]:
    def is_source(each: Any) -> bool:
        return isinstance(each, (str, Path, Contexts)) or getattr(each, "ndim", 0) == 2

    several = isinstance(heldout, (list, tuple)) and len(heldout) and all(map(is_source, heldout))
    return cast("Sequence[Source]", heldout) if several else [heldout]


def _run(
    inputs: BuildInputs,
    names: Sequence[str],
    vocabulary: Sequence[str] | None,
    out: Path,
    parent: Path,
    executor: Executor | None,
) -> Index:
    from logitsieve.index_builder import pipeline
    from logitsieve.index_builder.workers import Workers, in_threads

    with (
        tempfile.TemporaryDirectory(prefix=SCRATCH, dir=parent) as folder,
        in_threads(executor, inputs.config.threads) as pool,
    ):
        inputs = replace(inputs, workers=Workers(pool, Path(folder)))
        index = pipeline.run(inputs, names, vocabulary, out, Path(folder))
    _warn(index, judged=inputs.target is None)
    return index


def _warn(index: Index, judged: bool) -> None:
    for about in ("sketch_note", "screen_note"):
        if note := index.manifest.config.get(about):
            logger.warning("%s: %s", index.path, note)
    if not judged:
        return
    for point in (index.calibration or {}).get("points", ()):
        p1 = point["precision"].get("1", {"mean": 1.0})["mean"]
        if point["head"]["name"] == index.default_head and p1 < LEAST_P1:
            said = (
                "%s: the head %s, which answers by default, finds the best id of %.1f %% of the "
                "held-out contexts; build with a target_precision for more"
            )
            logger.warning(said, index.path, index.default_head, 100 * p1)
            return
