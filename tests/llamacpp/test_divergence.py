import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp import GgufModel, LlamaContext
from logitsieve.llamacpp.divergence import compare, divergence
from tests.client.dense import log_softmax
from tests.llamacpp.small_model import TEXT, Make
from tests.llamacpp.test_context import OTHERS, logits_of

pytestmark = pytest.mark.usefixtures("llama_wheel")

WINDOW = 24


def windows_of(context: LlamaContext) -> list[list[int]]:
    tokens = context.tokenize(TEXT, begin=False)
    return [tokens[i : i + WINDOW] for i in range(0, len(tokens), WINDOW)]


def log_probs_of(context: LlamaContext, tokens: list[int]) -> np.ndarray:
    return np.asarray(log_softmax(logits_of(context, context.read_alone(tokens))))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"head": "Q4_0"}),
        (OTHERS["scaled"], OTHERS["scaled"] | {"logit_scale": 2.0}),
        (OTHERS["softcapped"], OTHERS["softcapped"] | {"final_logit_softcapping": 6.0, "seed": 2}),
        ({"dim": 64}, {"dim": 128, "head": "Q8_0"}),
    ],
    ids=["quantised", "scaled", "softcap", "another width"],
)
def test_every_position_is_compared_as_by_dense_logits(
    make_gguf: Make, first: dict[str, Any], second: dict[str, Any]
) -> None:
    with LlamaContext(make_gguf(**first)) as one, LlamaContext(make_gguf(**second)) as two:
        windows = windows_of(one)
        found = compare(one, two, windows)
        at = 0
        for tokens in windows:
            start = len(tokens) // 2
            p, q = (log_probs_of(context, tokens)[start:-1] for context in (one, two))
            here = slice(at, at := at + len(p))
            following = tokens[start + 1 :]
            assert found.tokens[here].tolist() == following
            np.testing.assert_allclose(found.kl[here], (np.exp(p) * (p - q)).sum(axis=1), rtol=1e-9)
            for i, each in enumerate((p, q)):
                assert found.best[i, here].tolist() == each.argmax(axis=1).tolist()
                expected = each[np.arange(len(p)), following]
                np.testing.assert_allclose(found.log_probs[i, here], expected, rtol=1e-12)
        assert at == len(found.kl) > 50
        assert found.kl.min() > 0


def test_slices_change_nothing_and_a_model_does_not_differ_from_itself(make_gguf: Make) -> None:
    """In slices of 7 rows the largest logits grow, and sums fade, many times."""
    first, second = (GgufModel(make_gguf(seed=seed, bias=True)) for seed in (0, 1))
    rng = np.random.default_rng(3)
    hidden_states = 9 * rng.standard_normal((2, 5, first.dim)).astype(np.float32)
    tokens = rng.integers(0, first.vocab_size, 5)
    whole, sliced = (
        divergence(first, second, hidden_states[0], hidden_states[1], tokens, rows)
        for rows in (8192, 7)
    )
    assert whole.best.tolist() == sliced.best.tolist()
    np.testing.assert_allclose(sliced.kl, whole.kl, rtol=1e-10)
    np.testing.assert_allclose(sliced.log_probs, whole.log_probs, rtol=1e-12)
    with LlamaContext(make_gguf()) as one, LlamaContext(make_gguf()) as two:
        found = compare(one, two, windows_of(one))
        assert not found.kl.any()
        assert found.agree.all()
        assert not one.headless


def test_other_vocabularies_and_short_texts_are_refused(make_gguf: Make, tmp_path: Path) -> None:
    other = make_gguf(vocabulary=False)
    with LlamaContext(make_gguf()) as one, LlamaContext(make_gguf(seed=1)) as two:
        with pytest.raises(InvalidRequest, match="text: got less than two tokens"):
            compare(one, two, [[5]])
        refused = f"model: got {re.escape(str(other))}, of another vocabulary"
        with LlamaContext(other) as three, pytest.raises(InvalidRequest, match=refused):
            compare(one, three, [[5, 6]])
