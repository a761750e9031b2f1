"""Make an index of a GGUF model in another process while text is generated.

The cache has a folder for each hash of an output matrix.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM, signal
from subprocess import DEVNULL, Popen
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Self

from logitsieve.api.errors import IndexUnreadable, LogitsieveError, MissingExtra
from logitsieve.cli.generate import DENSE_ANSWERS
from logitsieve.index.files import TEMPORARY, remove_stale
from logitsieve.kernels.compile import default_cache
from logitsieve.utils.environment import require
from logitsieve.utils.options import ProgressOption, to_progress
from logitsieve.utils.own_files import make_own, opened_own
from logitsieve.utils.stored import KINDS

if TYPE_CHECKING:
    from logitsieve.decoding import LocalDecoder
    from logitsieve.llamacpp import GgufModel

# llama.cpp needs the other cores, and a few contexts suffice to show that the heads answer.
MODULE = "logitsieve.cli.background"
BUILD = (sys.executable, "-m", MODULE, "build", "--threads", "1", "--heldout-rows", "64")
NICENESS = 10
MAKING = f"No --index is given: one is made in the background. Until then {DENSE_ANSWERS}"
DIGITS = 16  # of a hash, in the name of its folder


def cached_index(model: GgufModel) -> Path:
    kind = model.matrix.kind if model.matrix.kind in KINDS else "F32"
    return default_cache() / "indexes" / model.sha256(kind)[:DIGITS] / "1"


def index_of_cache(
    model: GgufModel, threads: int, engine: str = "auto"
) -> tuple[LocalDecoder | None, BackgroundIndex | None]:
    """Open the index in the cache, or begin to make one, and say so."""
    path = cached_index(model)
    if path.exists():
        try:
            with opened_own(path.parents[2], path.parent.relative_to(path.parents[2])):
                decoder = warm_decoder(path, threads)
        except IndexUnreadable as error:
            print(f"{error}: it is made again.", file=sys.stderr)
            shutil.rmtree(path)
        except OSError as error:
            print(f"The index in the cache is not read: {error}. {DENSE_ANSWERS}", file=sys.stderr)
            return None, None
        else:
            print(f"No --index is given: that in {path} answers.", file=sys.stderr)
            return decoder, None
    try:
        making = BackgroundIndex(
            model.path, path, lambda index: warm_decoder(index, threads, None), engine
        )
    except (MissingExtra, OSError) as error:
        print(f"No index can be made: {error}. {DENSE_ANSWERS}", file=sys.stderr)
        return None, None
    print(MAKING, file=sys.stderr)
    return None, making


def warm_decoder(index: Path, threads: int, progress: ProgressOption = "auto") -> LocalDecoder:
    from logitsieve.decoding import LocalDecoder
    from logitsieve.index import open_index

    progress = to_progress(progress, "index")
    decoder = LocalDecoder(open_index(index, threads=threads, progress=progress))
    decoder.warm()
    return decoder


class BackgroundIndex:
    """Makes the index `out` of the model `gguf` in a process of low priority.

    `decoder` is set once it can answer, or `error` if it never will. Leaving the `with` block ends
    the process; the cache then has a complete index or none.
    """

    def __init__(
        self, gguf: Path, out: Path, opened: Callable[[Path], LocalDecoder], engine: str = "auto"
    ) -> None:
        require("builder", "numba", "threadpoolctl")
        self.decoder: LocalDecoder | None = None
        self.error = ""
        self._out, self._opened, self._began = out, opened, perf_counter()
        cache = out.parents[1]
        make_own(cache)
        with opened_own(cache.parent, cache.name):
            remove_stale(cache)
        self._folder = TemporaryDirectory(prefix=TEMPORARY, dir=cache)
        self._made = Path(self._folder.name, out.parent.name, out.name)
        self._log = Path(self._folder.name, "log")
        with self._log.open("wb") as log:
            self._process = Popen(
                [*BUILD, "--engine", engine, "--weight", str(gguf), "--out", str(self._made)],
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=log,
            )
        os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)
        self._thread = Thread(target=self._finish, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        self._handler = signal(SIGTERM, lambda *_: sys.exit(128 + SIGTERM))
        return self

    def __exit__(self, *error: object) -> None:
        signal(SIGTERM, self._handler)
        self._process.terminate()
        self.wait()

    @property
    def seconds(self) -> float:
        return perf_counter() - self._began

    def wait(self) -> None:
        self._thread.join()

    def _finish(self) -> None:
        with self._folder:
            if code := self._process.wait():
                lines = self._log.read_text(errors="replace").splitlines()
                self.error = lines[-1] if lines else f"exit code {code}"
                return
            make_own(self._out.parent)
            with suppress(OSError):  # another process was faster
                self._made.rename(self._out)
        try:
            self.decoder = self._opened(self._out)
        except LogitsieveError as error:
            self.error = str(error)


def build_and_compile(arguments: Sequence[str]) -> int:
    """Run `logitsieve build`, then compile kernels for other processes."""
    from logitsieve.cli.app import app

    if code := app(list(arguments), standalone_mode=False):
        return int(code)
    warm_decoder(Path(arguments[-1]), 1)
    return 0


if __name__ == "__main__":
    sys.exit(build_and_compile(sys.argv[1:]))
