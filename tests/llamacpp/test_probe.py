"""llama.cpp's logits are compared with the file's when a context is opened."""

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp import GgufModel, LlamaContext, model_file
from logitsieve.llamacpp.probe import representable
from logitsieve.llamacpp.xllamacpp import xllamacpp
from tests.llamacpp.small_model import Make, gemma4, write_model

pytestmark = pytest.mark.usefixtures("llama_wheel")

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [1.005, 0.995, -1.0])
def test_a_scale_of_half_a_percent_is_seen(make_gguf: Make, kind: str, factor: float) -> None:
    gguf = GgufModel(make_gguf(head=kind))
    LlamaContext(gguf).close()
    gguf.scale = factor
    with pytest.raises(InvalidRequest, match=r"llama: logits up to .* away from W h \+ b \(scale"):
        LlamaContext(gguf)


@pytest.mark.parametrize("cap", [20.0, 2000.0])
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_cap_is_seen_from_either_side(make_gguf: Make, kind: str, cap: float) -> None:
    plain = GgufModel(make_gguf(head=kind))
    plain.softcap = cap
    capped = GgufModel(
        make_gguf(architecture="gemma2", tied=True, head=kind, final_logit_softcapping=cap)
    )
    LlamaContext(capped).close()
    capped.softcap = None
    for gguf in (plain, capped):
        with pytest.raises(InvalidRequest, match=r"away from W h \+ b"):
            LlamaContext(gguf)


IGNORED: dict[str, dict[str, Any]] = {
    "a scale": {"logit_scale": 2.0},
    "a cap": {"final_logit_softcapping": 5.0},
    "both": {"logit_scale": 0.5, "final_logit_softcapping": 20.0},
}


@pytest.mark.parametrize("name", IGNORED)
def test_keys_that_llama_ignores_for_an_architecture_are_ignored(
    make_gguf: Make, name: str
) -> None:
    with LlamaContext(make_gguf(**IGNORED[name])) as context:
        assert (context.gguf.scale, context.gguf.softcap) == (1.0, None)


@pytest.mark.parametrize("powers", [{}, {"granite": 1}])
def test_a_scale_that_is_used_in_another_way_is_found(
    make_gguf: Make, powers: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_file, "SCALE_POWERS", powers)
    gguf = GgufModel(make_gguf(architecture="granite", logit_scale=4.0))
    assert gguf.scale == 4.0 ** powers.get("granite", 0)
    with LlamaContext(gguf) as context:
        assert context.gguf.scale == 0.25


def test_a_bias_that_llama_does_not_add_is_seen(make_gguf: Make) -> None:
    gguf = GgufModel(make_gguf())
    gguf.bias = np.zeros(gguf.vocab_size, np.float32)
    LlamaContext(gguf).close()
    gguf.bias[7] = 0.01
    with pytest.raises(InvalidRequest, match="away from W h"):
        LlamaContext(gguf)


DEFAULTS: dict[str, dict[str, Any]] = {"minicpm": {"architecture": "minicpm"}, "gemma4": gemma4()}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_of_missing_keys_are_llamas(make_gguf: Make, name: str) -> None:
    with LlamaContext(make_gguf(**DEFAULTS[name])) as context:
        assert (context.gguf.scale, context.gguf.softcap) == {
            "minicpm": (64 / 256, None),
            "gemma4": (1.0, 30.0),
        }[name]


def test_a_model_that_sees_later_tokens_is_refused(make_gguf: Make) -> None:
    dream = make_gguf(architecture="dream")  # not causal by its name alone
    with pytest.raises(InvalidRequest, match="attention is not causal"):
        LlamaContext(dream)


class Backwards:
    """llama.cpp's functions, but the rows of several sequences are computed from the last."""

    def __init__(self, functions: Any) -> None:
        self.functions, self.last = functions, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.functions, name)

    def llama_decode(self, context: Any, batch: Any) -> int:
        several = len({batch.seq_id[place][0] for place in range(batch.n_tokens)}) > 1
        self.last = batch.n_tokens - 1 if several else 0
        return int(self.functions.llama_decode(context, batch))

    def llama_get_logits_ith(self, context: Any, place: int) -> Any:
        return self.functions.llama_get_logits_ith(context, abs(self.last - place))


@pytest.mark.parametrize("separate", [True, False])
def test_rows_that_come_in_another_order_are_seen(make_gguf: Make, separate: bool) -> None:
    host = copy(xllamacpp())
    host.functions = Backwards(host.functions)
    LlamaContext(make_gguf(), engine=host).close()
    with pytest.raises(InvalidRequest, match=r"away from W h \+ b"):
        LlamaContext(make_gguf(), sequences=3, separate=separate, engine=host)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q6_K"])
def test_what_is_representable_stays_so_and_is_near(kind: str) -> None:
    hidden_states = np.random.default_rng(0).standard_normal((3, 512), np.float32) * 3
    hidden_states[1, :256] = 0
    once = representable(hidden_states, kind)
    np.testing.assert_allclose(representable(once, kind), once, rtol=1e-6)
    far = np.abs(once - hidden_states) > np.abs(hidden_states).max() / 200
    assert far.any() == (kind == "Q6_K")
    assert far.reshape(-1, 32).sum(1).max() <= 1  # the largest, the code 127
    assert not once[1, :256].any()


def test_a_model_split_over_files_decodes_as_in_one(make_gguf: Make, tmp_path: Path) -> None:
    write_model(tmp_path / "small.gguf", split=8)
    split = tmp_path / "small-00001-of-00003.gguf"
    with LlamaContext(split) as parts, LlamaContext(make_gguf()) as whole:
        np.testing.assert_array_equal(parts.read([1, 10, 20]), whole.read([1, 10, 20]))
