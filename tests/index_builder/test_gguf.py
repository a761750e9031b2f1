import logging
from pathlib import Path

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.index_builder import BuildConfig, build
from logitsieve.index_builder.arrays import gguf_output_layer
from logitsieve.llamacpp import GgufModel
from logitsieve.utils.stored import StoredMatrix
from tests.llamacpp.small_model import Make, tokens, write_model
from tests.synthetic import make_hidden


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q5_1"])
def test_an_index_has_the_files_matrix(make_gguf: Make, kind: str, tmp_path: Path) -> None:
    path, hidden_states = make_gguf(head=kind, bias=True), make_hidden(64, 64)
    config = BuildConfig(clusters=2, rounds=0)
    index = build(
        str(path), None, hidden_states, tmp_path / "m" / "1", heads=["sketch"], config=config
    )
    gguf = GgufModel(path)
    assert (index.manifest.dtype, index.manifest.softmax_sha256) == (kind, gguf.sha256(kind))
    np.testing.assert_array_equal(index.softmax.stored, gguf.matrix.blocks)
    logits = hidden_states[:8] @ gguf.matrix.rows(slice(None)).T + index.softmax.bias
    reply = index.head("sketch").topk(hidden_states[:8], 3)
    np.testing.assert_array_equal(reply.ids, np.argsort(-logits, axis=1)[:, :3])
    assert index.vocabulary is not None
    assert list(index.vocabulary) == tokens()[0]
    np.testing.assert_array_equal(index.softmax.bias, gguf.bias)


def test_other_types_become_float32_and_another_bias_is_refused(
    make_gguf: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = make_gguf(head="MXFP4")
    with caplog.at_level(logging.WARNING, "logitsieve"):
        weight, _, vocabulary = gguf_output_layer(path, None, ["given"])
    assert "output.weight is MXFP4; the index stores its values in float32" in caplog.text
    np.testing.assert_array_equal(weight, GgufModel(path).matrix.rows(slice(None)))
    assert vocabulary == ["given"]
    with pytest.raises(InvalidRequest, match="bias: got one"):
        gguf_output_layer(make_gguf(), np.zeros(3), None)
    with pytest.raises(InvalidRequest, match="weight: got"):
        gguf_output_layer(tmp_path / "none.gguf", None, None)


def test_the_output_layer_is_in_another_file_than_the_embeddings(
    make_gguf: Make, tmp_path: Path
) -> None:
    write_model(tmp_path / "small.gguf", split=8)
    weight, _, words = gguf_output_layer(tmp_path / "small-00001-of-00003.gguf", None, None)
    assert isinstance(weight, StoredMatrix)
    np.testing.assert_array_equal(weight.data, GgufModel(make_gguf()).matrix.blocks)
    assert words == tokens()[0]
