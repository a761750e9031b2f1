"""Opening an index: map, verify, build its heads."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads import HEADS, make_heads
from logitsieve.index.contents import Contents, Registry, check_heads, read_contents
from logitsieve.index.files import as_unreadable, unreadable
from logitsieve.index.index import Index
from logitsieve.index.manifest import CALIBRATION_FILE, MANIFEST_FILE
from logitsieve.index.verify import VerifiedMemory, fingerprint, verify_contents, verify_foreign
from logitsieve.kernels.compile import default_cache, use_cache
from logitsieve.utils.options import Progress


def open_index(
    path: Path | str,
    *,
    threads: int = 1,
    device: str = "cpu",
    verify: Literal["full", "sizes"] = "full",
    kernel_cache: Path | None = None,
    progress: Progress | None = None,
) -> Index:
    """Map the index directory `path` (<name>/<version>) and build its heads.

    `verify="full"` hashes every file, reads every number once and compares a sample of the sketch's
    rows with the matrix, then remembers the result beside the compiled kernels in `kernel_cache` by
    inode, size and times; "sizes" trusts the numbers, and hashes only the parts that faiss reads.
    `device` "cuda" or "cuda:1": W and the arrays of the heads that run on a GPU are copied to that
    one, where these heads answer. IndexUnreadable names the file and the reason, InvalidRequest the
    argument; DeviceExhausted and DeviceLost are the GPU's.
    """
    backend = backend_of(device)  # before anything is read
    if verify not in ("full", "sizes"):
        raise InvalidRequest("verify", repr(verify), "'full' or 'sizes'")
    if type(threads) is not int or threads < 1:
        raise InvalidRequest("threads", threads, "an integer >= 1")
    use_cache(kernel_cache)
    contents = read_contents(path)
    if verify == "full":
        memory, mark = VerifiedMemory(kernel_cache or default_cache()), fingerprint(contents)
        if mark not in memory:  # made before reading, so that a later change is noticed
            verify_contents(contents, progress)
            memory.add(mark)
    else:
        verify_foreign(contents)
    return assemble(contents, HEADS, threads, device, backend)


def verify_index(
    path: Path | str, progress: Progress | None = None, all_rows: bool = False
) -> list[str]:
    """Check everything, remembering nothing; the names of the files that were checked.

    `all_rows` compares every row of a sketch with the matrix instead of a sample, in time O(V D^2):
    then all that `certified` proves follows from the files. IndexUnreadable as `open_index`.
    """
    contents = read_contents(path)
    with as_unreadable(contents.path / MANIFEST_FILE):
        check_heads(contents.manifest, HEADS)
    verify_contents(contents, progress, all_rows)
    calibration = [] if contents.calibration is None else [CALIBRATION_FILE]
    return [MANIFEST_FILE, *(entry.file for entry in contents.manifest.files()), *calibration]


def assemble(
    contents: Contents,
    registry: Registry,
    threads: int,
    device: str = "cpu",
    backend: Any = None,
) -> Index:
    """The index with every head of the manifest that `registry` has and the device runs."""
    with as_unreadable(contents.path / MANIFEST_FILE):
        check_heads(contents.manifest, registry)
    knobs = {name: entry.knobs for name, entry in contents.manifest.heads.items()}
    make = make_heads if backend is None else backend.make_heads
    # Indexes of earlier builders do not name one: the last head that proves its answers.
    fallback = str(contents.manifest.config.get("fallback", ""))
    try:
        heads = make(registry, contents.softmax, contents.parts, knobs, threads, fallback=fallback)
    except InvalidRequest as error:  # knobs are checked: only arrays can be at fault
        raise unreadable(contents.path, error) from error
    return Index(contents, heads, threads, device, backend)


def backend_of(device: str) -> Any:
    """None for the CPU, else the backend whose entry point has the name before any ":".

    Entry points of the group "logitsieve.backends" are functions of the device's full name.
    InvalidRequest where the device does not exist, MissingExtra where its libraries do not.
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
