from itertools import product
from typing import Any

import pytest
import torch
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from logitsieve.client.huggingface import attach
from logitsieve.client.huggingface_whisper import first_timestamp, without_mass
from tests.client import tiny_models
from tests.client.dense import DenseDecoder
from tests.client.tiny_models import FRAMES, NO_SPEECH, NO_TIMESTAMPS, sound
from tests.sweeps import swept

USUAL = {"logprob_threshold": -1.5, "compression_ratio_threshold": 1.35, "no_speech_threshold": 0.6}
SHORT, LONG = FRAMES, 3 * FRAMES + 10


@pytest.fixture(scope="module", params=[3, pytest.param(4, marks=pytest.mark.exhaustive)])
def whisper(request: pytest.FixtureRequest) -> Any:
    return tiny_models.whisper(request.param)


def decoder_of(model: Any) -> DenseDecoder:
    return DenseDecoder(model.proj_out.weight.detach().numpy())


def transcribe(model: Any, frames: int = SHORT, **options: Any) -> list[list[int]]:
    torch.manual_seed(2)
    given = {
        "input_features": sound(2, frames),
        "attention_mask": torch.ones(2, frames, dtype=torch.long),
    }
    made = model.generate(**given, **{"max_new_tokens": 24, "return_timestamps": True} | options)
    ids: torch.Tensor = made if isinstance(made, torch.Tensor) else made["sequences"]
    return ids.tolist()


CASES = list(product([1, 5], [SHORT, LONG], [(0.0,), (0.0, 0.4, 1.0)], ["en", None]))


@pytest.mark.parametrize(
    ("beams", "frames", "temperatures", "language"),
    swept(CASES, [CASES[n] for n in (0, 3, 5, 6, 9, 10, 12, 15)]),  # with each pair of values
)
def test_timestamps_are_chosen_alike(
    whisper: Any, beams: int, frames: int, temperatures: tuple[float, ...], language: str | None
) -> None:
    options = {"num_beams": beams, "language": language, "temperature": temperatures} | USUAL
    expected = transcribe(whisper, frames, **options)
    with attach(whisper, decoder_of(whisper), k=3):
        assert transcribe(whisper, frames, **options) == expected
    assert any(token > NO_TIMESTAMPS for token in expected[0])
    assert any(token < NO_TIMESTAMPS for token in expected[0])


@pytest.mark.parametrize("edits", [{"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 2}])
@pytest.mark.parametrize("beams", [1, 5])
def test_timestamps_agree_with_other_edits(whisper: Any, beams: int, edits: dict[str, Any]) -> None:
    expected = transcribe(whisper, num_beams=beams, **edits)
    with attach(whisper, decoder_of(whisper), k=2):
        assert transcribe(whisper, num_beams=beams, **edits) == expected


def test_cold_draws_of_the_decoder_keep_the_rules(whisper: Any) -> None:
    expected = transcribe(whisper, LONG)
    decoder = decoder_of(whisper)
    with attach(whisper, decoder, k=2):
        drawn = transcribe(whisper, LONG, temperature=1e-4, top_k=0)
    assert drawn == expected
    assert "sample" in dict(decoder.asked)


@pytest.mark.parametrize("beams", [1, 5])
def test_timestamps_of_words(whisper: Any, beams: int) -> None:
    options: dict[str, Any] = {"return_token_timestamps": True, "num_beams": beams}
    expected = transcribe(whisper, **options)
    with attach(whisper, decoder_of(whisper), k=3):
        assert transcribe(whisper, **options) == expected


@pytest.mark.parametrize("beams", [1, 5])
@pytest.mark.parametrize("multilingual", [True, False])
def test_silence_is_found_alike(multilingual: bool, beams: int) -> None:
    model = tiny_models.whisper()
    model.generation_config.is_multilingual = multilingual  # English alone begins at <start>
    with torch.no_grad():
        start = torch.full((2, 1), tiny_models.START)
        logits = model(input_features=sound(), decoder_input_ids=start).logits[:, 0]
    silent = logits.softmax(1)[:, NO_SPEECH].max().item()
    # Any text is unlikely enough, so the probability of silence decides.
    options: dict[str, Any] = {"temperature": (0.0,), "logprob_threshold": 0.0}
    options |= {"num_beams": beams, "language": "en" if multilingual else None}
    decoder = decoder_of(model)
    found = []
    for threshold in (silent * 0.999, silent * 1.001):
        options["no_speech_threshold"] = threshold
        expected = transcribe(model, **options)
        with attach(model, decoder, k=3):
            assert transcribe(model, **options) == expected
        found.append(expected)
    assert found[0] != found[1]


def test_the_rule_of_the_mass_is_left_out_in_a_copy(whisper: Any) -> None:
    processor = WhisperTimeStampLogitsProcessor(whisper.generation_config, begin_index=3)
    assert first_timestamp([processor]) == NO_TIMESTAMPS + 1
    assert first_timestamp([without_mass(processor)]) is None
    assert first_timestamp([]) is None
    assert processor._detect_timestamp_from_logprob
