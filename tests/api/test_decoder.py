"""The keywords that decoders take: readable in help(), and refused where there is none such."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import pytest

from logitsieve.api.decoder import (
    DEFAULTS,
    BeamOptions,
    Decoder,
    SampleOptions,
    Target,
    check_keywords,
)
from logitsieve.client.remote_decoder import RemoteDecoder
from logitsieve.decoding import LocalDecoder

OPTIONS = {"topk": Target, "score": Target, "sample": SampleOptions, "beam_step": BeamOptions}


@pytest.mark.parametrize("decoder", [Decoder, LocalDecoder, RemoteDecoder])
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


def test_every_option_has_a_default_and_no_other_name_has() -> None:
    assert DEFAULTS.keys() == SampleOptions.__annotations__.keys() | BeamOptions.__annotations__


def test_a_keyword_that_a_method_does_not_have_is_refused() -> None:
    check_keywords(Target, {"head": "exact", "knobs": None})
    with pytest.raises(TypeError, match="unknown keyword: temprature; allowed: model, head"):
        check_keywords(SampleOptions, {"temprature": 0.5})
