"""Triton's interpreter, made to prepare its language once for each function, not for each call.

To run a function on numpy it puts functions of its own into `triton.language`, which it searches
for that at every launch and at every call of a device function, `tl.sum` among them: with blocks as
small as those of tests, that takes most of the time. What it puts there is always the same.
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
