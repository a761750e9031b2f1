"""Opens a causal language model in a Hugging Face folder, and a text, for `capture`.

Nothing is downloaded, no code of the folder runs, and weights must be safetensors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from logitsieve.api.checks import whole
from logitsieve.api.errors import InvalidRequest
from logitsieve.index_builder.capture.stream_sample import TEXT, token_windows
from logitsieve.index_builder.config import LONGEST_WINDOW, WINDOW
from logitsieve.utils.environment import require

require("huggingface", "torch", "transformers")

import torch  # noqa: E402  after `require` with its pip line
from torch import nn  # noqa: E402

MOST = 200
BATCH = 2  # windows; with 250,000 words, their logits take half a gigabyte
logger = logging.getLogger(__name__)

NEEDED = "a folder with config.json, .safetensors and a tokenizer of a causal language model"
WITHOUT_ENCODER = "a model without one; write a FUNCTION for --module (docs/building.md)"


def open_folder(
    folder: Path | str, text: Path | str, *, window: int = WINDOW
) -> tuple[nn.Module, Windows]:
    """Open a model in float32, and batches that read `text` (UTF-8, plain or gzipped) once.

    Windows have `window` tokens, at most the model's positions, and begin with the tokenizer's BOS
    token if it adds one. InvalidRequest names the argument.
    """
    from transformers import AutoConfig, AutoTokenizer

    folder, text = Path(folder), Path(text)
    window = whole("window", window, 2, LONGEST_WINDOW)
    if not (folder / "config.json").is_file():
        raise InvalidRequest("huggingface", folder, NEEDED)
    if not text.is_file():
        raise InvalidRequest("text", text, TEXT)
    with _named(folder):
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        if config.is_encoder_decoder:
            got = f"{folder} ({config.model_type}, with an encoder)"
            raise InvalidRequest("huggingface", got, WITHOUT_ENCODER)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = load_model(folder)
    positions = getattr(model.config, "max_position_embeddings", None) or LONGEST_WINDOW
    if window > positions:
        logger.warning(
            "window: got %d, but the model has %d positions: it reads so many", window, positions
        )
    return model, Windows(tokenizer, text, min(window, positions))


def load_model(folder: Path) -> nn.Module:
    from transformers import AutoModelForCausalLM

    with _named(folder):
        model: nn.Module = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, dtype=torch.float32
        )
    return model


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    bars: Any = import_module("transformers.utils.logging")  # untyped
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    except InvalidRequest:
        raise
    except (OSError, ValueError) as error:
        raise InvalidRequest("huggingface", f"{folder} ({str(error)[:MOST]})", NEEDED) from error
    finally:
        if shown:
            bars.enable_progress_bar()


@dataclass(frozen=True)
class Windows:
    tokenizer: Any
    text: Path
    window: int

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield [B, T] for full windows, then [1, T] for each that is left, without padding."""
        bos = self.tokenizer.bos_token_id
        begin = [one for one in self.tokenizer("")["input_ids"] if one == bos][:1]
        rows: list[list[int]] = []
        for ids in token_windows(self.text, self._tokenize, begin, self.window):
            rows.append(ids)
            if len(rows) == BATCH and len(ids) == self.window:
                yield _batch(rows)
                rows = []
        yield from (_batch([ids]) for ids in rows)

    def _tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids


def _batch(rows: list[list[int]]) -> dict[str, Any]:
    return {"input_ids": torch.tensor(rows), "use_cache": False}
