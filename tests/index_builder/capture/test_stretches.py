import numpy as np
import pytest

from logitsieve.index_builder.capture.primer import Stretch, read_stretches
from logitsieve.llamacpp import LlamaContext
from tests.llamacpp.small_model import Make

STRETCHES = [Stretch([5, 6, 7, 8], 1), Stretch([9, 10, 11], 2)]


@pytest.mark.usefixtures("llama_wheel")
def test_each_stretch_is_read_from_an_empty_cache(make_gguf: Make) -> None:
    seen: list[tuple[str, int, int]] = []
    with LlamaContext(make_gguf(), positions=16) as context:
        logits = read_stretches(context, STRETCHES, headless=False)
        hidden = read_stretches(
            context, STRETCHES, progress=lambda *report: seen.append(report), stage="read it"
        )
        assert not context.headless
        context.headless = True
        expected = []
        for tokens, first in STRETCHES:
            context.forget()
            expected.append(context.read(tokens, every=True)[first:])
        matrix = context.gguf.matrix.dense(np.float32)
    np.testing.assert_array_equal(hidden, np.concatenate(expected))
    assert seen == [("read it", 1, 2), ("read it", 2, 2)]
    np.testing.assert_allclose(logits, hidden @ matrix.T, rtol=1e-3, atol=1e-3)
