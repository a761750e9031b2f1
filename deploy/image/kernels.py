"""Compiles kernels when the image is built, and runs a command with them.

    kernels.py compile FOLDER    for each of KINDS
    kernels.py run COMMAND ...   for this machine's kind

Other processors, or one named by NUMBA_CPU_NAME, compile kernels at the first start.
"""

import os
import platform
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import NamedTuple

from llvmlite import binding


class Kind(NamedTuple):
    """Processors that share kernels: LLVM's name, and the features that all of them have.

    They have none of the features `without`, for which there are faster kernels.
    """

    name: str
    features: str
    without: str = ""

    def suits(self, features: set[str]) -> bool:
        return features.issuperset(self.features.split()) and features.isdisjoint(
            self.without.split()
        )

    @property
    def environment(self) -> dict[str, str]:
        features = ",".join(f"+{feature}" for feature in self.features.split())
        return {"NUMBA_CPU_NAME": self.name, "NUMBA_CPU_FEATURES": features}


V3 = "avx avx2 bmi bmi2 cx16 f16c fma lzcnt movbe popcnt sahf sse3 sse4.1 sse4.2 ssse3 xsave"
V4 = f"{V3} avx512bw avx512cd avx512dq avx512f avx512vl"
KINDS = (
    Kind("x86-64-v3", V3, without="avx512f avxvnni"),  # Haswell to Skylake, Zen 1 to 3
    Kind("x86-64-v4", V4, without="avx512vnni"),  # Skylake's servers
    Kind("x86-64-v4", f"{V4} avx512vnni", without="avx512vbmi"),  # Cascade Lake
    Kind("x86-64-v4", f"{V4} avx512vbmi avx512vnni", without="sse4a"),  # Ice Lake and later
    Kind("x86-64-v4", f"{V4} avx512vbmi avx512vnni sse4a"),  # Zen 4 and later
)


def environment_of(features: set[str]) -> dict[str, str]:
    """Return Numba's settings for a processor with LLVM's `features`; empty if no kind suits."""
    return next((kind.environment for kind in KINDS if kind.suits(features)), {})


def run(command: list[str]) -> None:
    """Replace this process by `command`, so that signals reach it."""
    features = {name for name, there in binding.get_host_cpu_features().items() if there}
    settings = {} if "NUMBA_CPU_NAME" in os.environ else environment_of(features)
    os.execvpe(command[0], command, os.environ | settings)


def compile_all(folder: Path) -> None:

    from logitsieve import kernels
    from logitsieve.kernels.compile import CFunction, Kernel, use_cache
    from logitsieve.kernels.rows.functions import STORED_TYPES, addresses

    use_cache(folder)
    modules = walk_packages(kernels.__path__, f"{kernels.__name__}.")
    named = [found for one in modules for found in vars(import_module(one.name)).values()]
    made = {found.address for found in named if isinstance(found, Kernel | CFunction)}
    made.update(*map(addresses, STORED_TYPES))
    print(f"{len(made)} kernels for {os.environ['NUMBA_CPU_NAME']}")


def main() -> None:

    action, *arguments = sys.argv[1:]
    if action == "run":
        run(arguments)
    elif "NUMBA_CPU_NAME" in os.environ:
        compile_all(Path(arguments[0]))
    elif platform.machine() == "x86_64":
        command, folder = [sys.executable, __file__, action, *arguments], Path(arguments[0])
        folder.mkdir(parents=True, exist_ok=True)
        made = [subprocess.Popen(command, env=os.environ | kind.environment) for kind in KINDS]
        for process in made:
            if process.wait():
                raise subprocess.CalledProcessError(process.returncode, command)
        for path in folder.rglob("*"):  # Numba makes files for its own user alone
            path.chmod(0o755 if path.is_dir() else 0o644)


if __name__ == "__main__":
    main()
