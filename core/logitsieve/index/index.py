"""An open index: its heads over mapped arrays, ready to answer.

Shape letters: B batch rows, D hidden size, V vocabulary, M ids a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike, Float32, Int32
from logitsieve.heads._base.head import Head, Softmax, ready_hidden
from logitsieve.index.calibration import check_calibration
from logitsieve.index.contents import Contents, read_vocabulary
from logitsieve.index.files import as_unreadable
from logitsieve.index.manifest import CALIBRATION_FILE, Manifest
from logitsieve.utils.options import Progress


class Index:
    """Immutable; any number of threads may use it. `open_index` and the builder make it."""

    def __init__(
        self,
        contents: Contents,
        heads: Mapping[str, Head],
        threads: int,
        device: str = "cpu",
        backend: Any = None,
    ) -> None:
        self._heads = dict(heads)
        self.threads, self.device = threads, device
        self.backend = backend  # None on the CPU; gpu/engine.py has that of a GPU
        self.path = contents.path
        self.name: str = contents.path.parent.name
        self.version = int(contents.path.name)
        self.manifest: Manifest = contents.manifest
        self.digest: str = contents.manifest.digest
        self.vocab_size: int = contents.manifest.vocab_size
        self.dim: int = contents.manifest.dim
        self.heads: tuple[str, ...] = tuple(heads)
        self.default_head: str = contents.manifest.default_head
        self.calibration: Mapping[str, Any] | None = contents.calibration
        self._softmax: Softmax | None = contents.softmax

    @property
    def first_id(self) -> int:
        """The id that row 0 of W has in the softmax that the index holds a shard of; else 0."""
        return 0 if self.manifest.shard is None else self.manifest.shard.first

    def __repr__(self) -> str:
        sizes = f"V={self.vocab_size}, D={self.dim}, heads={list(self.heads)}"
        return f"<Index {str(self.path)!r} {sizes}>"

    @property
    def softmax(self) -> Softmax:
        """The frozen output layer: `stored` [V, D] and `bias` [V], shared with the page cache."""
        if self._softmax is None:
            raise InvalidRequest("index", f"{self.name}/{self.version}, closed", "an open index")
        return self._softmax

    @cached_property
    def vocabulary(self) -> tuple[str, ...] | None:
        """The words by id, read at the first use; None where the index has none."""
        return read_vocabulary(self.path, self.manifest)

    @cached_property
    def measured(self) -> Mapping[str, Any] | None:
        """`calibration`, checked against docs/building.md at the first use; None without one.

        No digest covers it: IndexUnreadable names the first field at fault.
        """
        if self.calibration is not None:
            with as_unreadable(self.path / CALIBRATION_FILE):
                check_calibration(self.calibration)
        return self.calibration

    def head(self, name: str = "", **knobs: float) -> Head:
        """The head `name` ("": the default one) at its stored operating point, or at `knobs`.

        InvalidRequest("head") for one the index does not hold, InvalidKnob for a wrong knob.
        """
        head = self._heads.get(name or self.default_head)
        if head is None:
            allowed = ", ".join(self._heads) or "none, it is closed"
            where = "" if self.device == "cpu" else f" (on {self.device})"
            raise InvalidRequest("head", repr(name or self.default_head), allowed + where)
        return head.with_knobs(**knobs) if knobs else head

    def logits(self, hidden: ArrayLike, ids_BM: ArrayLike) -> Float32:
        """Exact logits W[ids] . h + b, [B, M], of the ids [B, M] for each row of `hidden`.

        An index on a GPU answers tensors on that GPU with a tensor there: -inf for ids that are not
        in the vocabulary. InvalidRequest names `hidden` or `ids`.
        """
        if self.backend is not None:
            logits: Float32 | None = self.backend.logits(self.head("exact"), hidden, ids_BM)
            if logits is not None:
                return logits
        softmax = self.softmax
        hidden_BD = ready_hidden(hidden, softmax.dim)
        ids = self._as_ids(ids_BM, len(hidden_BD))
        offsets = np.arange(len(ids) + 1, dtype=np.int64) * ids.shape[1]
        return softmax.logits(hidden_BD, offsets, ids.ravel()).reshape(ids.shape)

    def _as_ids(self, ids: ArrayLike, rows: int) -> Int32:
        try:
            array = np.asarray(ids)
        except ValueError as error:
            raise InvalidRequest("ids", "a ragged list", "integers [B, M]") from error
        if array.dtype.kind not in "iu" or array.ndim != 2 or array.size == 0:
            got = f"{array.dtype} {list(array.shape)}"
            raise InvalidRequest("ids", got, "integers [B, M], M >= 1")
        if len(array) != rows:
            raise InvalidRequest("ids", f"{len(array)} rows", f"{rows}, one for each of `hidden`")
        low, high = array.min(), array.max()
        if low < 0 or high >= self.vocab_size:
            raise InvalidRequest("ids", f"{low} .. {high}", f"0 .. {self.vocab_size - 1}")
        return np.ascontiguousarray(array, np.int32)

    def warm(self, progress: Progress | None = None) -> None:
        """Compile (or load) every kernel; `progress` gets ("warm", heads done, heads in all)."""
        self.logits(np.zeros((1, self.dim), np.float32), [[0]])
        for done, head in enumerate(self._heads.values(), start=1):
            head.warm()
            if progress is not None:
                progress("warm", done, len(self._heads))

    def close(self) -> None:
        """Release the mapping; heads still in use keep theirs until they are dropped."""
        self._heads.clear()
        self._softmax = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
