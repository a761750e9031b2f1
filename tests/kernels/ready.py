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
    """Have all imported kernels at hand, most of them compiled by one of so many processes.

    Two go through the same kernels from either end until they meet what the other has left in the
    cache. Neighbours share functions, which a process reads once for all of them.
    """
    each = [partial(addresses, kind) for kind in STORED_TYPES]
    kernels = sorted(_kernels().values(), key=lambda one: one._dispatcher.py_func.__module__)
    each += [one.entry for one in kernels]
    pair, pairs = number // 2, (shares + 1) // 2
    own = each[len(each) * pair // pairs :] + each[: len(each) * pair // pairs]
    for compiled in own[:: 1 - 2 * (number % 2)]:
        compiled()


def _kernels() -> dict[str, Kernel]:
    modules = [module for name, module in sys.modules.items() if name.startswith("logitsieve.")]
    found = [one for module in modules for one in vars(module).items()]
    return {name: one for name, one in found if isinstance(one, Kernel)}
