"""The shape of parsed JSON, which files of others have to have."""

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints


class Rule(NamedTuple):
    """Allowed JSON values, and their description."""

    allowed: str
    fits: Callable[[Any], bool]


def read(form: Any, where: str, value: Any) -> Any:
    """Return `value` with its dataclasses made; ValueError names the first place that deviates.

    A form is a Rule, a type annotated with one, or of others: a list of one form; a dict of those
    of names that an object has at least, or of all keys by a Rule of theirs; a dataclass, of an
    object with exactly its fields; Mapping[str, form], form | None or Any.
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
