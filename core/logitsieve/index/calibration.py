"""The shape of calibration.json (docs/building.md).

No digest covers the file, so readers check it here once and rely on the result.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from logitsieve.api.results import Float32

Check = Callable[[str, object], None]  # (place in the file, value): ValueError

MAX_NUMBER = 1e15  # far above any measurement; also excludes NaN
MAX_TEXT = 200  # characters of a name
CONTEXT_ROWS = 256  # contexts stored for the console
CONTEXT_BYTES = 4 << 20  # and their bytes at most: the file has a limit
_K = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


def check_calibration(calibration: Mapping[str, Any]) -> None:
    """Check every field; ValueError names the first one that deviates from the builder's format."""
    _CALIBRATION("calibration", calibration)
    if "contexts" in calibration:  # earlier builders wrote none
        _contexts("calibration.contexts", calibration["contexts"])
    points = calibration["points"]
    if not any(point["head"]["name"] == "exact" and point["rows"] == 1 for point in points):
        raise ValueError("points: the head 'exact' at 1 row a call is missing")


def pack_contexts(hidden: Float32) -> dict[str, Any]:
    """Encode the first contexts of [N, D] that fit in calibration.json."""
    rows = max(1, min(CONTEXT_ROWS, CONTEXT_BYTES // hidden[0].nbytes))
    kept = np.ascontiguousarray(hidden[:rows], "<f4")
    return {"rows": len(kept), "dim": kept.shape[1], "float32": b64encode(kept.tobytes()).decode()}


def unpack_contexts(calibration: Mapping[str, Any], dim: int) -> Float32 | None:
    """Decode the contexts of a checked calibration, float32 [N, D]; None if it has none.

    ValueError if they are not of size `dim`.
    """
    contexts = calibration.get("contexts")
    if contexts is None:
        return None
    if contexts["dim"] != dim:
        raise ValueError(f"calibration.contexts.dim: got {contexts['dim']}, needed: {dim}")
    values = np.frombuffer(b64decode(contexts["float32"]), "<f4")
    return values.reshape(-1, dim).astype(np.float32)


def _object(**checks: Check) -> Check:
    def check(where: str, value: object) -> None:
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object")
        for name, of in checks.items():
            if name not in value:
                raise ValueError(f"{where}.{name}: missing")
            of(f"{where}.{name}", value[name])

    return check


def _each(of: Check, key: Check) -> Check:
    def check(where: str, value: object) -> None:
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object")
        for name, entry in value.items():
            key(where, name)
            of(f"{where}.{name}", entry)

    return check


def _list(of: Check) -> Check:
    def check(where: str, value: object) -> None:
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        for number, entry in enumerate(value):
            of(f"{where}[{number}]", entry)

    return check


def _plain(needed: str, kinds: tuple[type, ...], fits: Callable[[Any], bool]) -> Check:
    def check(where: str, value: object) -> None:
        if type(value) not in kinds or not fits(value):
            raise _wrong(where, value, needed)

    return check


_text = _plain(f"text of at most {MAX_TEXT} characters", (str,), lambda text: len(text) <= MAX_TEXT)
_k = _plain("a number of answers as each key", (str,), lambda key: bool(_K.fullmatch(key)))
_flag = _plain("true or false", (bool,), lambda _: True)
_number = _plain("a number", (int, float), lambda number: abs(number) < MAX_NUMBER)
_positive = _plain("a number > 0", (int, float), lambda number: 0 < number < MAX_NUMBER)
_share = _plain("a number from 0 to 1", (int, float), lambda number: 0 <= number <= 1)
_count = _plain("an integer >= 1", (int,), lambda number: 0 < number < MAX_NUMBER)


def _wrong(where: str, value: object, needed: str) -> ValueError:
    return ValueError(f"{where}: got {value!r:.40}, needed: {needed}")


def _machine(where: str, value: object) -> None:
    _each(_text, key=_text)(where, value)
    _object(cpu=_text)(where, value)


def _contexts(where: str, value: object) -> None:
    _object(rows=_count, dim=_count)(where, value)
    assert isinstance(value, dict)
    text = value.get("float32")
    try:
        size = len(b64decode(text if isinstance(text, str) else "?", validate=True))
    except (binascii.Error, ValueError):
        size = -1
    if size != 4 * value["rows"] * value["dim"]:
        raise ValueError(f"{where}.float32: needed: rows x dim float32 in base64")
    if not np.isfinite(np.frombuffer(b64decode(value["float32"]), "<f4")).all():
        raise ValueError(f"{where}.float32: needed: finite numbers")


_precision = _object(mean=_share, low=_share)
_POINT = _object(
    head=_object(name=_text, knobs=_each(_number, key=_text)),
    rows=_count,
    us_per_row=_positive,
    precision_at=_each(_number, key=_k),
    precision=_each(_precision, key=_k),
    uneven=_flag,
    candidates=_number,
    mass_kept=_number,
)
_CALIBRATION = _object(machine=_machine, heldout_rows=_count, points=_list(_POINT))
