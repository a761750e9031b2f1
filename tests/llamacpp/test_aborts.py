"""What llama.cpp would end the process for is an error of the file."""

import ctypes
import threading
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp import LlamaContext
from logitsieve.llamacpp.aborts import Aborted, without_abort
from logitsieve.llamacpp.xllamacpp import xllamacpp
from tests.llamacpp.small_model import Make, gemma4

pytestmark = pytest.mark.usefixtures("llama_wheel")

ENDING: dict[str, dict[str, Any]] = {
    "GGML_ASSERT.* tokens are 'twice'": {"extra": ("twice", "twice")},
    "n_layer": {"keys": (("llama.block_count", 600),)},
    "eps >= 0": {"attention.layer_norm_rms_epsilon": float("nan")},
    "n_dims": gemma4(rotated=3),
}


@pytest.mark.parametrize("reason", ENDING)
def test_a_file_that_would_end_the_process_is_named(make_gguf: Make, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=f"model: got .*xllamacpp .* aborts, .*{reason}"):
        LlamaContext(make_gguf(**ENDING[reason]), threads=2)
    with LlamaContext(make_gguf()) as context:
        assert np.isfinite(context.read([5, 6, 7])).all()


def test_a_call_returns_raises_or_aborts() -> None:
    functions = xllamacpp().functions
    assert without_abort(functions, lambda: 7) == 7
    with pytest.raises(KeyError):
        without_abort(functions, lambda: dict[str, int]()["none"])
    functions.ggml_abort.restype = None

    def abort() -> None:
        functions.ggml_abort(b"/a/place.cpp", 12, b"no %s", ctypes.c_char_p(b"more"))

    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(Aborted, match=r"place.cpp:12: no more"):
            without_abort(functions, abort)
    assert threading.active_count() == before + 2
    assert without_abort(object(), lambda: 8) == 8  # a build without the function
