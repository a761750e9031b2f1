from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from logitsieve.api.errors import InvalidRequest
from logitsieve.client.huggingface import attach
from logitsieve.client.huggingface_processor import KnownLogits
from tests.client.dense import decoder_of, generate

EDITS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 1, "bad_words_ids": [[7], [9, 12]], "min_new_tokens": 4},
    {"suppress_tokens": list(range(3, 120)), "sequence_bias": [[[200], 2.5], [[5], -1.0]]},
]


@pytest.mark.parametrize("edits", EDITS, ids="+".join)
def test_without_our_processor_edits_would_change_the_choice(
    language_model: Any, edits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = generate(language_model, **edits)
    with attach(language_model, decoder_of(language_model), k=1) as attached:
        monkeypatch.setattr(KnownLogits, "__call__", lambda self, input_ids, scores: scores)
        assert generate(language_model, **edits) != expected
        assert attached.head.last is not None


class Raised(LogitsProcessor):
    """One of the user's: id 40 gains 3."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, 40] += 3
        return scores


def test_processors_of_the_users_own_are_named(language_model: Any) -> None:
    options = {"logits_processor": LogitsProcessorList([Raised()])}
    expected = generate(language_model, **options)
    with (
        attach(language_model, decoder_of(language_model)),
        pytest.raises(InvalidRequest, match="Raised"),
    ):
        generate(language_model, **options)
    with attach(language_model, decoder_of(language_model), editors=(Raised,)):
        assert generate(language_model, **options) == expected
