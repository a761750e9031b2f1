from logitsieve.utils.floats import BY_NAME, ELEMENT_TYPES


def test_no_format_has_a_name_twice_and_numpy_has_each_type_but_bfloat16() -> None:
    for format in ("name", "safetensors", "kserve"):
        names = [name for kind in ELEMENT_TYPES if (name := getattr(kind, format))]
        assert len(set(names)) == len(names)
    for name, element in BY_NAME.items():
        assert element.numpy.name == ("uint16" if name == "bfloat16" else name)
        assert element.numpy.newbyteorder("<") == element.numpy
