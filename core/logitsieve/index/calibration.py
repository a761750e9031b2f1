"""The shape of calibration.json as the builder writes it (docs/building.md).

No digest covers the file, so readers ask here once and rely on the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[str, object], None]  # (where it stands, what stands there): ValueError

LIMIT = 1e15  # no measurement comes near; NaN is not below it either
MAX_TEXT = 200  # characters of a name


def check_calibration(calibration: Mapping[str, Any]) -> None:
    """ValueError names the first place that is not as the builder writes it."""
    _CALIBRATION("calibration", calibration)
    points = calibration["points"]
    if not any(point["head"]["name"] == "exact" and point["rows"] == 1 for point in points):
        raise ValueError("points: the head 'exact' at 1 row a call is missing")


def _object(**checks: Check) -> Check:
    """These keys; further ones are left alone."""

    def check(where: str, value: object) -> None:
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object")
        for name, of in checks.items():
            if name not in value:
                raise ValueError(f"{where}.{name}: missing")
            of(f"{where}.{name}", value[name])

    return check


def _each(of: Check) -> Check:
    """An object of any keys."""

    def check(where: str, value: object) -> None:
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object")
        for name, entry in value.items():
            _text(where, name)
            of(f"{where}.{name}", entry)

    return check


def _list(of: Check) -> Check:
    def check(where: str, value: object) -> None:
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        for number, entry in enumerate(value):
            of(f"{where}[{number}]", entry)

    return check


def _text(where: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise _wrong(where, value, f"text of at most {MAX_TEXT} characters")


def _flag(where: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _wrong(where, value, "true or false")


def _number(where: str, value: object) -> None:
    if type(value) not in (int, float) or not abs(value) < LIMIT:  # type: ignore[arg-type]
        raise _wrong(where, value, "a number")


def _positive(where: str, value: object) -> None:
    if type(value) not in (int, float) or not 0 < value < LIMIT:  # type: ignore[operator]
        raise _wrong(where, value, "a number > 0")


def _count(where: str, value: object) -> None:
    if type(value) is not int or not 0 < value < LIMIT:
        raise _wrong(where, value, "an integer >= 1")


def _wrong(where: str, value: object, needed: str) -> ValueError:
    return ValueError(f"{where}: got {value!r:.40}, needed: {needed}")


def _machine(where: str, value: object) -> None:
    _each(_text)(where, value)
    _object(cpu=_text)(where, value)


_POINT = _object(
    head=_object(name=_text, knobs=_each(_number)),
    rows=_count,
    us_per_row=_positive,
    precision_at=_each(_number),
    precision=_each(_object(mean=_number, low=_number)),
    uneven=_flag,
    candidates=_number,
    mass_kept=_number,
)
_CALIBRATION = _object(
    machine=_machine,
    heldout_rows=_count,
    points=_list(_POINT),
    compared=_list(_POINT),
)
