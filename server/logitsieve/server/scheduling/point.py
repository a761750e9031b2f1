"""What answers a batch: an engine over one index, or over the shards of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.requests import Beams, Sampling
from logitsieve.api.results import BeamStepReply, Float32, Int32, SampleReply, ScoreReply, TopKReply


class Point(Protocol):
    """A head at its knobs, with a normalizer ("" for none); any number of threads may call it."""

    model: str
    version: str
    digest: str
    head: str
    normalizer: str
    width: float

    @property
    def knobs(self) -> Mapping[str, float]:
        """The values of knobs, by their names."""

    def topk(
        self, hidden: np.ndarray[Any, Any], k: int, constraints: Constraints | None = None
    ) -> TopKReply:
        """The k best tokens of each row of `hidden` [B, D]."""

    def score(self, hidden: Float32, targets: Int32, constraints: Constraints | None) -> ScoreReply:
        """Log-probabilities of `targets` [B, T]."""

    def sample(
        self, hidden: Float32, sampling: Sampling, constraints: Constraints | None
    ) -> SampleReply:
        """Draws for each row."""

    def beam_step(
        self, hidden: Float32, beams: Beams, constraints: Constraints | None
    ) -> BeamStepReply:
        """The best continuations of hypotheses."""
