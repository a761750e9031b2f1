"""Tiny Hugging Face models with seeded random weights, and rows to start from."""

from typing import Any

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

VOCABULARY, DIM = 400, 32
EOS, PAD = 1, 0
IDS: dict[str, Any] = {
    "vocab_size": VOCABULARY, "bos_token_id": EOS, "eos_token_id": EOS, "pad_token_id": PAD,
}  # fmt: skip


def gpt2(**options: Any) -> Any:
    torch.manual_seed(0)
    shape: Any = {"n_positions": 64, "n_embd": DIM, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(initializer_range=0.2, **IDS, **shape, **options))
    with torch.no_grad():
        model.lm_head.weight[EOS] *= 2  # sentences end
    return _ready(model)


def marian(model: Any = MarianMTModel, config: Any = MarianConfig) -> Any:
    """Also any of BART's kind; with a final_logits_bias that matters."""
    torch.manual_seed(1)
    sizes = {"layers": 1, "attention_heads": 2, "ffn_dim": 48}
    shape: dict[str, Any] = {
        f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()
    }
    shape |= {"d_model": DIM, "max_position_embeddings": 64, "init_std": 0.2}
    forced = {"forced_eos_token_id": None, "forced_bos_token_id": None}
    made = model(config(decoder_start_token_id=PAD, **forced, **shape, **IDS))
    made.final_logits_bias.normal_(std=0.5)
    made.final_logits_bias[:, EOS] = 3.5  # sentences end
    return _ready(made)


def bart() -> Any:
    return marian(BartForConditionalGeneration, BartConfig)


def t5() -> Any:
    torch.manual_seed(2)
    shape: Any = {"d_model": DIM, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2}
    config = T5Config(vocab_size=VOCABULARY, pad_token_id=PAD, eos_token_id=EOS, **shape)
    model: Any = T5ForConditionalGeneration(config)
    model.generation_config.decoder_start_token_id = PAD
    return _ready(model)


FRAMES = 40  # of a segment of the tiny Whisper
START, ENGLISH, GERMAN, TRANSCRIBE, TRANSLATE, NO_SPEECH, NO_TIMESTAMPS = range(340, 347)


def whisper(seed: int = 3) -> Any:
    """Twenty timestamps after 347 other ids; suppresses some ids, as the published ones do."""
    torch.manual_seed(seed)
    sizes = {"layers": 1, "attention_heads": 2, "ffn_dim": 48}
    shape: dict[str, Any] = {
        f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()
    }
    shape |= {"d_model": DIM, "num_mel_bins": 8, "max_source_positions": FRAMES // 2}
    shape |= {"max_target_positions": 48, "init_std": 0.4, "decoder_start_token_id": START}
    model: Any = WhisperForConditionalGeneration(
        WhisperConfig(
            **IDS | shape | {"vocab_size": NO_TIMESTAMPS + 1 + FRAMES // 2, "pad_token_id": EOS}
        )
    )
    with torch.no_grad():
        model.proj_out.weight[EOS] *= 1.5  # segments end
    settings: dict[str, Any] = {
        "is_multilingual": True,
        "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN},
        "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
        "no_timestamps_token_id": NO_TIMESTAMPS,
        "suppress_tokens": [2, 9, 17, *range(START, NO_TIMESTAMPS)],
        "begin_suppress_tokens": [EOS, 20],
        "max_initial_timestamp_index": 5,
        "alignment_heads": [[0, 0], [0, 1]],
    }
    model.generation_config.update(**settings)
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return _ready(model)


def sound(rows: int = 2, frames: int = FRAMES) -> torch.Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.randn(rows, 8, frames, generator=generator)


def _ready(model: Any) -> Any:
    model.generation_config.max_length = None
    return model.eval()


def prompts(rows: int = 3) -> dict[str, torch.Tensor]:
    """Ids without padding, and the mask that says so."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(2, VOCABULARY, (rows, 6), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
