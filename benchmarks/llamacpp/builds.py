"""Engines to measure: llama.cpp's wheel, a build with a backend for each CPU, ik_llama.cpp.

The wheel `xllamacpp` has AVX2 kernels only. On a CPU with more, npm's package of node-llama-cpp is
loaded behind the same C API: its fastest backend that the CPU runs.
"""

import ctypes
import subprocess
import tarfile
from functools import cache
from pathlib import Path

from demo.published import CACHE, check
from logitsieve.llamacpp.host import Host
from logitsieve.llamacpp.ik import ik_llama_cpp, is_installed
from logitsieve.llamacpp.xllamacpp import XLlamaCpp, xllamacpp

PACKAGE, VERSION = "@node-llama-cpp/linux-x64", "3.22.1"
SHA256 = "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0"
NEWER = ("avx512f", "avx_vnni")  # flags of CPUs that have more than AVX2


def more_than_avx2() -> bool:
    """True where the CPU has vectors of 512 bits, or products of bytes."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    return any(flag in flags for flag in NEWER)


def builds() -> dict[str, Host]:
    """The wheel's llama.cpp, where the CPU has more than AVX2 npm's, and ik_llama.cpp's wheel."""
    found: dict[str, Host] = {"wheel": xllamacpp()}
    if more_than_avx2():
        found["native"] = npm_build(unpacked(CACHE))
        native_backend(CACHE)
    if is_installed():
        found["ik"] = ik_llama_cpp()
    return found


@cache
def native_backend(folder: Path) -> Path:
    """The library of the fastest backend that this CPU runs, which is loaded."""
    bins = unpacked(folder)
    [ggml] = bins.glob("libggml.v*.so")
    backends = ctypes.CDLL(str(ggml)).ggml_backend_load_all_from_path
    backends.argtypes, backends.restype = [ctypes.c_char_p], None
    with npm_build(bins).messages():
        backends(str(bins).encode())
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    return next(Path(one) for one in mapped if one.startswith(f"{bins}/libggml-cpu"))


@cache
def npm_build(bins: Path) -> XLlamaCpp:
    """npm's llama.cpp, which has no backend yet."""
    [llama] = bins.glob("libllama.v*.so")
    return XLlamaCpp(llama, f"npm {VERSION}")


def unpacked(folder: Path) -> Path:
    """The libraries of npm's package; ValueError unless it has its hash."""
    place = folder / "npm" / f"node-llama-cpp-{VERSION}"
    if not place.exists():
        packed = folder / "npm" / f"node-llama-cpp-linux-x64-{VERSION}.tgz"
        if not packed.exists():
            packed.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["npm", "pack", f"{PACKAGE}@{VERSION}"], cwd=packed.parent, check=True)
        check(packed, SHA256)
        with tarfile.open(packed) as archive:
            archive.extractall(place, filter="data")
    return place / "package" / "bins" / "linux-x64"
