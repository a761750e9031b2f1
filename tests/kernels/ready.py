"""Entry kernels: which are ready to be called, and the compiling of some."""

import sys
from functools import partial

from logitsieve.kernels.compile import Kernel
from logitsieve.kernels.rows.functions import STORED_TYPES, addresses


def ready() -> set[str]:
    """Entry kernels whose machine code is at hand."""
    return {name for name, one in _kernels().items() if one.entry.cache_info().currsize}


def forget() -> None:
    """Let every entry kernel be asked for its machine code again, as in a new process."""
    for one in _kernels().values():
        one.entry.cache_clear()


def compile_share(number: int, shares: int) -> None:
    """Compile one of so many equal shares of all kernels that are imported."""
    each = [one.entry for _, one in sorted(_kernels().items())]
    each += [partial(addresses, kind) for kind in STORED_TYPES]
    for compiled in each[number::shares]:
        compiled()


def _kernels() -> dict[str, Kernel]:
    modules = [module for name, module in sys.modules.items() if name.startswith("logitsieve.")]
    found = [one for module in modules for one in vars(module).items()]
    return {name: one for name, one in found if isinstance(one, Kernel)}
