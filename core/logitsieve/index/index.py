"""Open and verify an index."""

from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from logitsieve.api.checks import id_rows, whole
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike, Float32
from logitsieve.heads import HEADS, make_heads
from logitsieve.heads._base.head import Softmax, ready_hidden
from logitsieve.heads._base.kernel_head import Head
from logitsieve.index.calibration import check_calibration
from logitsieve.index.files import as_unreadable, unreadable
from logitsieve.index.manifest import CALIBRATION_FILE, MANIFEST_FILE, Manifest
from logitsieve.index.reader import Contents, Registry, check_heads, read_contents, read_vocabulary
from logitsieve.index.verify import VerifiedMemory, fingerprint, verify_contents
from logitsieve.kernels.compile import default_cache, use_cache
from logitsieve.utils.options import Progress


class Index:
    """An open index. Immutable, and safe for any number of threads."""

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
        self.backend = backend  # None on the CPU; see gpu/gpu_engine.py
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
        # The id of row 0: nonzero for a shard of a larger softmax.
        self.first_id: int = 0 if self.manifest.shard is None else self.manifest.shard.first
        self._softmax: Softmax | None = contents.softmax

    def __repr__(self) -> str:
        sizes = f"V={self.vocab_size}, D={self.dim}, heads={list(self.heads)}"
        return f"<Index {str(self.path)!r} {sizes}>"

    @property
    def softmax(self) -> Softmax:
        """The frozen output layer; its arrays share the page cache."""
        if self._softmax is None:
            raise InvalidRequest("index", f"{self.name}/{self.version}, closed", "an open index")
        return self._softmax

    @cached_property
    def vocabulary(self) -> tuple[str, ...] | None:
        """The words by id, or None; read on first use."""
        return read_vocabulary(self.path, self.manifest)

    @cached_property
    def word_ids(self) -> Mapping[str, int]:
        """The first id of each word; empty without a vocabulary."""
        words = self.vocabulary or ()
        return dict(zip(reversed(words), range(len(words) - 1, -1, -1), strict=True))

    @cached_property
    def measured(self) -> Mapping[str, Any] | None:
        """`calibration`, checked on first use (IndexUnreadable)."""
        if self.calibration is not None:
            with as_unreadable(self.path / CALIBRATION_FILE):
                check_calibration(self.calibration)
        return self.calibration

    def head(self, name: str = "", **knobs: float) -> Head:
        """Return a head, by default `default_head`, at its stored knobs or at `knobs`."""
        head = self._heads.get(name or self.default_head)
        if head is None:
            allowed = ", ".join(self._heads) or "none, it is closed"
            where = "" if self.device == "cpu" else f" (on {self.device})"
            raise InvalidRequest("head", repr(name or self.default_head), allowed + where)
        return head.with_knobs(**knobs) if knobs else head

    def logits(self, hidden_states: ArrayLike, ids_BM: ArrayLike) -> Float32:
        """Return the exact logits of ids [B, M], as a tensor for tensors on the index's GPU."""
        if self.backend is not None:
            logits: Float32 | None = self.backend.logits(self.head("full"), hidden_states, ids_BM)
            if logits is not None:
                return logits
        softmax = self.softmax
        hidden_BD = ready_hidden(hidden_states, softmax.dim)
        ids = id_rows("ids", ids_BM, len(hidden_BD), self.vocab_size - 1)
        offsets = np.arange(len(ids) + 1, dtype=np.int64) * ids.shape[1]
        return softmax.logits(hidden_BD, offsets, ids.ravel()).reshape(ids.shape)

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


def open_index(
    path: Path | str,
    *,
    threads: int = 1,
    device: str = "cpu",
    verify: Literal["full", "sizes"] = "full",
    kernel_cache: Path | None = None,
    progress: Progress | None = None,
) -> Index:
    """Map the index directory `path` (<name>/<version>) and make its heads.

    `verify="full"` hashes every file, reads every number and compares a sample of the sketch with
    the matrix; `kernel_cache` remembers that it passed. "sizes" trusts the numbers. A `device` such
    as "cuda:1" gets copies of W and of the arrays of its heads.

    IndexUnreadable names the file, InvalidRequest the argument; a GPU raises DeviceExhausted or
    DeviceLost.
    """
    backend = backend_of(device)
    if verify not in ("full", "sizes"):
        raise InvalidRequest("verify", repr(verify), "'full' or 'sizes'")
    threads = whole("threads", threads, 1)
    use_cache(kernel_cache)
    contents = read_contents(path)
    if verify == "full":
        # The mark is made before files are read, so that a later change is noticed.
        memory, mark = VerifiedMemory(kernel_cache or default_cache()), fingerprint(contents)
        if mark not in memory:
            verify_contents(contents, progress)
            memory.add(mark)
    return assemble(contents, HEADS, threads, device, backend)


def verify_index(
    path: Path | str, progress: Progress | None = None, all_rows: bool = False
) -> list[str]:
    """Check everything again, and return the names of the checked files.

    `all_rows` compares the whole sketch with the matrix, in O(V D^2). IndexUnreadable names a file.
    """
    contents = read_contents(path)
    with as_unreadable(contents.path / MANIFEST_FILE):
        check_heads(contents.manifest, HEADS)
    verify_contents(contents, progress, all_rows)
    calibration = [] if contents.calibration is None else [CALIBRATION_FILE]
    return [MANIFEST_FILE, *(entry.file for entry in contents.manifest.files()), *calibration]


def assemble(
    contents: Contents, registry: Registry, threads: int, device: str = "cpu", backend: Any = None
) -> Index:
    """Make the manifest's heads that `registry` has and the device runs."""
    with as_unreadable(contents.path / MANIFEST_FILE):
        check_heads(contents.manifest, registry)
    knobs = {name: entry.knobs for name, entry in contents.manifest.heads.items()}
    fallback = str(contents.manifest.config.get("fallback", ""))
    try:
        softmax = contents.softmax
        if backend is not None:
            registry, softmax = backend.adapted(registry, softmax)
        heads = make_heads(registry, softmax, contents.parts, knobs, threads, fallback)
    except InvalidRequest as error:  # about arrays: knobs were checked above
        raise unreadable(contents.path, error) from error
    return Index(contents, heads, threads, device, backend)


def backend_of(device: str) -> Any:
    """Return None for the CPU, else the backend that an entry point declares.

    InvalidRequest if the device does not exist, MissingExtra without its libraries.
    """
    if device == "cpu":
        return None
    backends = entry_points(group="logitsieve.backends")
    name = device.partition(":")[0]
    if name not in backends.names:
        others = [f"{name}, {name}:0, {name}:1, ..." for name in sorted(backends.names)]
        none = "cpu (the installed logitsieve declares no other device: install it again)"
        raise InvalidRequest(
            "device", repr(device), ", ".join(["cpu", *others]) if others else none
        )
    return backends[name].load()(device)
