import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.llamacpp import GgufModel
from tests.llamacpp.small_model import Make, tokens, write_model
from tests.refusals import refused

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix_has_the_values_that_gguf_reads(make_gguf: Make, kind: str) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    path = make_gguf(head=kind)
    model = GgufModel(path)
    [tensor] = [one for one in GGUFReader(path).tensors if one.name == "output.weight"]
    values = dequantize(tensor.data, tensor.tensor_type)
    assert model.matrix.kind == kind
    assert model.matrix.shape == (model.vocab_size, model.dim) == values.shape
    np.testing.assert_array_equal(model.matrix.rows(slice(None)), values)
    np.testing.assert_array_equal(model.matrix.rows(np.array([5, 3])), values[[5, 3]])
    np.testing.assert_array_equal(model.matrix.dense(np.float32), values)
    assert model.vocabulary == tokens()[0]
    assert model.bias is None
    assert (model.scale, model.softcap) == (1.0, None)


def test_a_tied_matrix_a_bias_a_softcap_and_hashes_of_values(make_gguf: Make) -> None:
    assert GgufModel(make_gguf(tied=True)).matrix.name == "token_embd.weight"
    model = GgufModel(make_gguf(bias=True))
    assert model.matrix.name == "output.weight"
    assert np.asarray(model.bias).shape == (model.vocab_size,)
    path = make_gguf(architecture="gemma3", final_logit_softcapping=5.0)
    assert GgufModel(path).softcap == 5.0
    assert GgufModel(make_gguf(architecture="gemma2")).softcap == 30.0
    assert GgufModel(make_gguf(architecture="gemma2", final_logit_softcapping=0.0)).softcap is None
    model = GgufModel(make_gguf(head="Q8_0"))
    assert model.sha256("Q8_0") == GgufModel(make_gguf(head="Q8_0", tied=False)).sha256("Q8_0")
    assert len({model.sha256("Q8_0"), model.sha256("F32"), model.sha256("F16")}) == 3
    assert model.sha256("F16") == ""
    assert model.sha256("Q8_0") != GgufModel(make_gguf(head="Q8_0", seed=1)).sha256("Q8_0")


@pytest.mark.parametrize(
    ("architecture", "scale"), [("command-r", 4.0), ("granite", 0.25), ("grok", 4.0)]
)
def test_the_scale_is_the_architectures(make_gguf: Make, architecture: str, scale: float) -> None:
    assert GgufModel(make_gguf(architecture=architecture, logit_scale=4.0)).scale == scale


def parts_of(folder: Path, **options: Any) -> list[Path]:
    write_model(folder / "small.gguf", split=8, **options)
    return sorted(folder.glob("small-*.gguf"))


def test_a_model_split_over_files_is_read_whole(make_gguf: Make, tmp_path: Path) -> None:
    parts, whole = parts_of(tmp_path, bias=True), GgufModel(make_gguf(bias=True))
    model = GgufModel(parts[0])
    assert len(parts) == 3
    assert model.matrix.name == "output.weight"
    np.testing.assert_array_equal(model.matrix.blocks, whole.matrix.blocks)
    np.testing.assert_array_equal(model.bias, whole.bias)
    assert (model.vocabulary, model.sha256("F32")) == (whole.vocabulary, whole.sha256("F32"))


def test_parts_of_a_model_are_named(tmp_path: Path) -> None:
    parts, renamed = parts_of(tmp_path), tmp_path / "renamed.gguf"
    renamed.write_bytes(parts[0].read_bytes())
    with refused("model", r"renamed.gguf: part 1 of 3, allowed: the name NAME-00001-of-00003"):
        GgufModel(renamed)
    with refused("model", f"one of several files, 2 of 3, allowed: the first, {parts[0]}"):
        GgufModel(parts[1])
    parts[1].write_bytes(parts[2].read_bytes())
    with refused("model", r"another model's part \(2, 3\), allowed: part 2 of"):
        GgufModel(parts[0])
    parts[1].unlink()
    with refused("model", f"one of several files, allowed: all 3 .*{parts[1].name} too"):
        GgufModel(parts[0])


def spoiled(path: Path, out: Path, what: str) -> Path:
    data = bytearray(path.read_bytes())
    if what == "truncated":
        del data[-1000:]
    else:  # the type follows the name, the number of dimensions and two of them
        place = data.index(b"output.weight") + len("output.weight") + 4 + 16
        data[place : place + 4] = (99 if what == "type" else 8).to_bytes(4, "little")
    out.write_bytes(data)
    return out


def test_files_that_cannot_be_used_are_named(make_gguf: Make, tmp_path: Path) -> None:
    bad = {
        "truncated": spoiled(make_gguf(), tmp_path / "cut.gguf", "truncated"),
        "unknown tensor type 99": spoiled(make_gguf(), tmp_path / "type.gguf", "type"),
        "no output matrix": make_gguf(leave_out=("output.weight", "token_embd.weight")),
        "a file of the type 'adapter'": make_gguf(keys=(("general.type", "adapter"),)),
        "architecture 'clip'": make_gguf(architecture="clip"),
        "a model of embeddings": make_gguf(keys=(("llama.pooling_type", 3),)),
        "attention.causal = false": make_gguf(keys=(("llama.attention.causal", False),)),
        "a number, 0 or more": make_gguf(architecture="gemma2", final_logit_softcapping=-1.0),
    }
    for reason, path in bad.items():
        with refused("weight", f"{re.escape(str(path))}.*{reason}"):
            GgufModel(path, "weight")
