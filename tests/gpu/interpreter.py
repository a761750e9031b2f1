"""Triton's interpreter, made to prepare its language once a function, and each type once.

To run a function on numpy it puts functions of its own into `triton.language`, which it searches
for that at every launch and at every call of a device function, `tl.sum` among them: with blocks as
small as those of tests, that takes much of the time. What it puts there is always the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from triton.runtime import interpreter


class _Kept:
    """The changes that a function needs; a launch leaves them to the next."""

    def restore(self) -> None: ...


def prepare_once() -> None:
    """From now on, for every kernel of this process."""
    prepare: Callable[..., Any] = interpreter._patch_lang

    @cache
    def prepare_for(function: Callable[..., Any]) -> _Kept:
        prepare(function)
        return _Kept()

    interpreter._patch_lang = prepare_for
    numpy_type: Callable[..., Any] = interpreter._get_np_dtype
    types: dict[str, Any] = {}

    def numpy_type_once(dtype: Any) -> Any:
        """Look it up in a table that is not made anew for each operation."""
        if dtype.name not in types:
            types[dtype.name] = numpy_type(dtype)
        return types[dtype.name]

    interpreter._get_np_dtype = numpy_type_once
