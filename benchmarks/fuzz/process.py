"""One target under libFuzzer: `python -m benchmarks.fuzz.process <target> <kernels or ""> ...`.

What answers requests is instrumented while it is imported; what Numba compiles must stay as it is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from pkgutil import iter_modules

import atheris

from logitsieve import kernels

COMPILED = [f"{kernels.__name__}.{module.name}" for module in iter_modules(kernels.__path__)]

with atheris.instrument_imports(include=["logitsieve"], exclude=COMPILED):
    from benchmarks.fuzz.targets import targets


def main() -> None:
    """Fuzz until libFuzzer is done, which ends the process."""
    command, name, kernels, *flags = sys.argv
    with targets(Path(kernels) if kernels else None) as known:
        target = known[name]

        def once(data: bytes) -> None:
            target(data)

        atheris.Setup([command, *flags], once)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
