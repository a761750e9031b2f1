"""Builds of llama.cpp to measure: the wheel's, and one that has a backend for each kind of CPU.

The wheel `xllamacpp` has AVX2 kernels only. On a CPU with more, npm's package of node-llama-cpp is
loaded behind the same C API: its fastest backend that the CPU runs.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import subprocess
import tarfile
from pathlib import Path

from demo.published import CACHE
from logitsieve.llamacpp.library import LlamaLibrary, library, load, messages

PACKAGE, VERSION = "@node-llama-cpp/linux-x64", "3.22.1"
SHA512 = "5uCCDNqWCNfaAm8aR/Uzxbo4HBpKgNF91kCHPepKhgMgV2OAmatoefbOlMihsqCiH2Od35E/eUHQCFbfRBJuOg=="
NEWER = ("avx512f", "avx_vnni")  # flags of CPUs that have more than AVX2


def builds(native: bool = False) -> dict[str, LlamaLibrary]:
    """The wheel's llama.cpp, and where the CPU has more than AVX2, or if `native`, npm's."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    found = {"wheel": library()}
    if native or any(flag in flags for flag in NEWER):
        found["native"] = npm_build(CACHE)
    return found


def npm_build(cache: Path) -> LlamaLibrary:
    """npm's build; ValueError unless the package has its hash."""
    folder = cache / "npm" / f"node-llama-cpp-{VERSION}"
    if not folder.exists():
        packed = cache / "npm" / f"node-llama-cpp-linux-x64-{VERSION}.tgz"
        if not packed.exists():
            packed.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["npm", "pack", f"{PACKAGE}@{VERSION}"], cwd=packed.parent, check=True)
        digest = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
        if digest != SHA512:
            raise ValueError(f"{packed} has the SHA-512 {digest}, allowed: {SHA512}")
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
    bins = folder / "package" / "bins" / "linux-x64"
    [llama] = bins.glob("libllama.v*.so")
    [ggml] = bins.glob("libggml.v*.so")
    loaded = load(llama, f"npm {VERSION}")
    backends = ctypes.CDLL(str(ggml)).ggml_backend_load_all_from_path
    backends.argtypes, backends.restype = [ctypes.c_char_p], None
    with messages(loaded.functions):
        backends(str(bins).encode())
    return loaded
