"""One target under libFuzzer: `python -m tools.fuzz.process <target> <kernels or ""> ...`.

What answers requests is instrumented while it is imported; what Numba compiles must stay as it is.
"""

import sys
from pathlib import Path
from pkgutil import walk_packages

import atheris

from logitsieve import kernels

COMPILED = [module.name for module in walk_packages(kernels.__path__, f"{kernels.__name__}.")]

with atheris.instrument_imports(include=["logitsieve"], exclude=COMPILED):
    from tools.fuzz.targets import targets


def main() -> None:
    command, name, kernels, *flags = sys.argv
    with targets(Path(kernels) if kernels else None) as all_targets:
        target = all_targets[name]

        def once(data: bytes) -> None:
            target(data)

        atheris.Setup([command, *flags], once)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
