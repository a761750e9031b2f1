"""The table of element types: one row a type, and no name twice in a format."""

import pytest

from logitsieve.utils.floats import BY_NAME, ELEMENT_TYPES


@pytest.mark.parametrize("format", ["name", "safetensors", "kserve"])
def test_no_format_has_a_name_twice(format: str) -> None:
    names = [name for kind in ELEMENT_TYPES if (name := getattr(kind, format))]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", BY_NAME)
def test_numpy_has_the_same_type_but_for_bfloat16(name: str) -> None:
    kind = BY_NAME[name].numpy
    assert kind.name == ("uint16" if name == "bfloat16" else name)
    assert kind.newbyteorder("<") == kind
