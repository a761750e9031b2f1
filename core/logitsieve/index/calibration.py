"""The format of calibration.json (docs/building.md), which no digest covers: readers check it."""

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from logitsieve.api.results import Float32


class Rule(NamedTuple):
    """A check of a JSON value, and its description."""

    allowed: str
    fits: Callable[[Any], bool]


def read(form: Any, where: str, value: Any) -> Any:
    """Return `value`, with objects made dataclasses; ValueError names the first place at fault.

    A form is a Rule, a type annotated with one, Any, `form | None`, `[form]`, Mapping[str, form],
    `{name: form}` for an object that may have more names, `{Rule: form}` with a rule for its keys,
    or a dataclass for an object with exactly its fields.
    """
    origin, args = get_origin(form), get_args(form)
    if form is Any or (value is None and NoneType in args):
        return value
    if origin is Annotated or NoneType in args:
        return read(args[1] if origin is Annotated else args[0], where, value)
    if isinstance(form, Rule):
        return value if form.fits(value) else _refuse(where, value, form.allowed)
    if isinstance(form, list):
        if not isinstance(value, list):
            _refuse(where, value, "a list")
        return [read(form[0], f"{where}[{number}]", each) for number, each in enumerate(value)]
    if not isinstance(value, dict):
        _refuse(where, value, "a JSON object")
    if origin is Mapping:
        return {key: read(args[1], f"{where}.{key}", each) for key, each in value.items()}
    if isinstance(form, dict):
        for name, of in form.items():
            if isinstance(name, Rule):
                for key, each in value.items():
                    read(of, f"{where}.{read(name, where, key)}", each)
            elif name not in value:
                raise ValueError(f"{where}.{name}: missing")
            else:
                read(of, f"{where}.{name}", value[name])
        return value
    fields = get_type_hints(form, include_extras=True)
    if value.keys() != fields.keys():
        raise ValueError(f"{where}: needs exactly {', '.join(sorted(fields))}")
    return form(**{key: read(fields[key], f"{where}.{key}", each) for key, each in value.items()})


def _refuse(where: str, value: object, allowed: str) -> None:
    raise ValueError(f"{where}: got {value!r:.80}, allowed: {allowed}")


MAX_NUMBER = 1e15  # also excludes NaN
MAX_TEXT = 200
CONTEXT_ROWS = 256  # for the console
CONTEXT_BYTES = 4 << 20
_K_TEXT = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


def check_calibration(calibration: Mapping[str, Any]) -> None:
    """Check every field; ValueError names the first one at fault."""
    read(_CALIBRATION, "calibration", calibration)
    if "contexts" in calibration:  # an index's owner may delete them
        _contexts("calibration.contexts", calibration["contexts"])
    points = calibration["points"]
    for number, point in enumerate(points):
        if "steps" in point:
            read(_STEPS, f"calibration.points[{number}].steps", point["steps"])
        if "draw_us" in point:
            read(_POSITIVE, f"calibration.points[{number}].draw_us", point["draw_us"])
    if not any(point["head"]["name"] == "full" and point["rows"] == 1 for point in points):
        raise ValueError("points: the head 'full' at 1 row a call is missing")


def pack_contexts(hidden_states: Float32) -> dict[str, Any]:
    """Encode the first contexts of [N, D], as many as calibration.json takes."""
    rows = max(1, min(CONTEXT_ROWS, CONTEXT_BYTES // hidden_states[0].nbytes))
    first = np.ascontiguousarray(hidden_states[:rows], "<f4")
    text = b64encode(first.tobytes()).decode()
    return {"rows": len(first), "dim": first.shape[1], "float32": text}


def unpack_contexts(calibration: Mapping[str, Any], dim: int) -> Float32 | None:
    """Decode the contexts, if any, as float32 [N, D]; ValueError for another D."""
    contexts = calibration.get("contexts")
    if contexts is None:
        return None
    if contexts["dim"] != dim:
        raise ValueError(f"calibration.contexts.dim: got {contexts['dim']}, needed: {dim}")
    values = np.frombuffer(b64decode(contexts["float32"]), "<f4")
    return values.reshape(-1, dim).astype(np.float32)


def _number(allowed: str, fits: Callable[[Any], bool], kinds: Any = (int, float)) -> Rule:
    return Rule(allowed, lambda value: type(value) in kinds and fits(value))


_TEXT = Rule(
    f"text of at most {MAX_TEXT} characters",
    lambda value: isinstance(value, str) and len(value) <= MAX_TEXT,
)
_K = Rule(
    "a number of answers as each key",
    lambda key: isinstance(key, str) and _K_TEXT.fullmatch(key) is not None,
)
_FLAG = Rule("true or false", lambda value: type(value) is bool)
_NUMBER = _number("a number", lambda number: abs(number) < MAX_NUMBER)
_POSITIVE = _number("a number > 0", lambda number: 0 < number < MAX_NUMBER)
_SHARE = _number("a number from 0 to 1", lambda number: 0 <= number <= 1)
_COUNT = _number("an integer >= 1", lambda number: 0 < number < MAX_NUMBER, (int,))
_POINT = {
    "head": {"name": _TEXT, "knobs": {_TEXT: _NUMBER}},
    "rows": _COUNT,
    "us_per_row": _POSITIVE,
    "precision": {_K: {"mean": _SHARE, "low": _SHARE}},
    "uneven": _FLAG,
    "max_error": _SHARE,
    "candidates": _NUMBER,
    "mass_kept": _NUMBER,
}
_STEPS = {
    "mean": _SHARE, "low": _SHARE, "same": _SHARE, "log_z_error": _NUMBER, "us_per_row": _POSITIVE
}  # fmt: skip
_CALIBRATION = {"machine": {_TEXT: _TEXT, "cpu": _TEXT}, "heldout_rows": _COUNT, "points": [_POINT]}


def _contexts(where: str, value: Any) -> None:
    read({"rows": _COUNT, "dim": _COUNT}, where, value)
    text = value.get("float32")
    try:
        data = b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != 4 * value["rows"] * value["dim"]:
        raise ValueError(f"{where}.float32: needed: rows x dim float32 in base64")
    if not np.isfinite(np.frombuffer(data, "<f4")).all():
        raise ValueError(f"{where}.float32: needed: finite numbers")
