"""Watermarks: a secret and the last ids of a text determine the seed of its next draw.

Aaronson's watermark (lecture, 2022), as Fernandez et al. 2023 (Three Bricks to Consolidate
Watermarks for Large Language Models) test it. Averaged over keys, a draw has the model's
distribution: a repeated context, for which the noise is no longer new, is drawn from without a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from struct import pack

import numpy as np

from logitsieve.api.checks import whole
from logitsieve.api.errors import InvalidRequest, naming
from logitsieve.api.results import UInt64

WIDTH = 4  # fewer ids repeat within a text; more are lost with each id that somebody changes
WIDEST = 256
LEAST_BYTES, MOST_BYTES = 16, blake2b.MAX_KEY_SIZE


@dataclass(frozen=True)
class WatermarkKey:
    """A secret of 16 to 64 bytes, which with the last `width` ids of a text gives the next seed."""

    secret: bytes = field(repr=False)
    width: int = WIDTH

    def __post_init__(self) -> None:
        known = isinstance(self.secret, bytes)
        if not known or not LEAST_BYTES <= len(self.secret) <= MOST_BYTES:
            got = f"{len(self.secret)} bytes" if known else type(self.secret).__name__
            raise InvalidRequest("secret", got, f"{LEAST_BYTES} to {MOST_BYTES} bytes")
        whole("width", self.width, 1, WIDEST)

    @classmethod
    def read(cls, path: Path, option: str) -> WatermarkKey:
        """Read a key from a file, without newlines at its end; InvalidRequest names `option`."""
        try:
            with path.open("rb") as file:
                secret = file.read(1 << 16).rstrip(b"\r\n")
        except OSError as error:
            raise InvalidRequest(option, f"{path} ({error.strerror})", "a file") from error
        with naming(option):
            return cls(secret)

    def seeds(self, texts: Sequence[Sequence[int]], seeds: UInt64) -> UInt64:
        """Return seeds [B] for the next draws, made as `sample(..., seeds=these, step=0)`.

        `texts` are the ids drawn so far for each row, without prompts, so that equal prompts get
        different answers. A text's first `width` draws, and those after a repeated context, depend
        only on its own seed in `seeds` [B] and on its length.
        """
        made = [self._next(list(text), int(seed)) for text, seed in zip(texts, seeds, strict=True)]
        return np.array(made, np.uint64)

    def seed_after(self, context: Sequence[int]) -> int:
        """Return the seed of the draw after these `width` ids."""
        return self._hash(pack(f"<{len(context)}i", *context), b"context")

    def _next(self, text: list[int], seed: int) -> int:
        start = len(text) - self.width
        context = text[max(start, 0) :]
        if start < 0 or any(
            text[at : at + self.width] == context for at in range(start) if text[at] == context[0]
        ):
            return self._hash(pack("<QQ", seed, len(text)), b"ordinary")
        return self.seed_after(context)

    def _hash(self, message: bytes, use: bytes) -> int:
        hashed = blake2b(message, digest_size=8, key=self.secret, person=use)
        return int.from_bytes(hashed.digest(), "little")
