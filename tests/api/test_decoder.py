import inspect
import pydoc
from math import inf
from typing import Any

import numpy as np
import pytest

from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import (
    BeamOptions,
    ModelSpec,
    SampleOptions,
    asked_width,
    check_keywords,
    resolved_spec,
)
from logitsieve.api.requests import DEFAULTS
from logitsieve.client.remote_decoder import AsyncRemoteDecoder, RemoteDecoder
from logitsieve.decoding import LocalDecoder

OPTIONS = {"topk": ModelSpec, "score": ModelSpec, "sample": SampleOptions, "beam_step": BeamOptions}


@pytest.mark.parametrize("decoder", [Decoder, LocalDecoder, RemoteDecoder, AsyncRemoteDecoder])
@pytest.mark.parametrize(("method", "options"), OPTIONS.items())
def test_every_keyword_is_in_signature_and_help(decoder: Any, method: str, options: Any) -> None:
    function = getattr(decoder, method)
    parameters = inspect.signature(function).parameters
    text = pydoc.plain(pydoc.render_doc(function))
    for name in (*options.__annotations__, "constraints"):
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert f"{name}: " in text
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    assert parameters["head"].annotation == "str"
    assert parameters["head"].default == ""


def test_keywords_have_defaults_and_others_are_refused() -> None:
    assert DEFAULTS.keys() == SampleOptions.__annotations__.keys() | BeamOptions.__annotations__
    check_keywords(ModelSpec, {"head": "full", "knobs": None})
    with pytest.raises(TypeError, match="unknown keyword: temprature; allowed: model, head"):
        check_keywords(SampleOptions, {"temprature": 0.5})


@pytest.mark.parametrize("width", [1e-9, 100, np.float32(0.5)])
def test_a_width_is_a_number_of_nats(width: Any) -> None:
    assert asked_width(width) == resolved_spec({"width": width}).width == float(width)
    assert asked_width(None) == resolved_spec({"exact": True}).width == inf


@pytest.mark.parametrize("width", [0, -1.0, 1e-10, 101, inf, float("nan"), True, "1", [1.0]])
def test_wrong_widths(width: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"width: got .*, allowed: a number, 1e-09 to 100"):
        asked_width(width)
