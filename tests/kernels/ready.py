"""Which entry kernels are ready to be called."""

from __future__ import annotations

import sys

from logitsieve.kernels.compile import Kernel


def ready() -> set[str]:
    """Entry kernels whose machine code is at hand."""
    return {name for name, one in _kernels().items() if one.entry.cache_info().currsize}


def forget() -> None:
    """Let every entry kernel be asked for its machine code again, as in a new process."""
    for one in _kernels().values():
        one.entry.cache_clear()


def _kernels() -> dict[str, Kernel]:
    modules = [module for name, module in sys.modules.items() if name.startswith("logitsieve.")]
    found = [one for module in modules for one in vars(module).items()]
    return {name: one for name, one in found if isinstance(one, Kernel)}
