"""The one protocol that in-process and remote decoders share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from logitsieve.types.results import ArrayLike, TopKReply

NormalizerName = Literal["candidates", "exact"]

# Codes of decoder.proto's Normalizer; a test compares them. Not all of them are built.
NORMALIZER_CODES = {"candidates": 1, "lowrank": 2, "sampled": 3, "certified": 4, "exact": 5}


class Decoder(Protocol):
    """Answers requests about the next tokens; B rows of hidden size D."""

    def topk(
        self,
        hidden: ArrayLike,
        k: int,
        *,
        model: str = "",
        head: str = "",
        knobs: Mapping[str, float] | None = None,
        normalizer: NormalizerName | None = None,
    ) -> TopKReply:
        """The k best tokens of each row of `hidden` [B, D] or [D].

        `model` is "name", "name@version" or "name:alias" (empty: the only one there is); `head`
        empty is the index's own choice; `knobs` override its calibrated values; `normalizer` adds
        log Z to the answer. Raises InvalidRequest naming the field at fault.
        """
        ...
