"""The heads that run on a card: for each, which plan answers.

Shape letters: B rows of hidden, D hidden size, V vocabulary, K answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import Tensor

from logitsieve.api.results import Float32
from logitsieve.gpu.heads.certified import CardCertified
from logitsieve.gpu.heads.exact import CardExact
from logitsieve.gpu.heads.head import CardHead
from logitsieve.gpu.plans import Plan
from logitsieve.gpu.plans.frequency import frequency_on
from logitsieve.gpu.plans.screen import Screen, ScreenPlan, screen_on
from logitsieve.gpu.plans.svd import Preview, preview_on, svd_plan
from logitsieve.gpu.plans.svd import fits as svd_fits
from logitsieve.heads.svd import SvdHead


class CardScreen(CardHead):
    """Looks at the candidate lists of the best clusters of each row."""

    def plan(self, hidden: Tensor, k: int) -> Plan:
        """The lists' rows, and the fallback's."""
        return ScreenPlan(
            self._card.matrix, self._screen(), hidden, k, self._card.fallback,
            probes=int(self.knobs["probes"]), escalate=self.knobs["escalate"],
        )  # fmt: skip

    def _screen(self) -> Screen:
        return self._card.kept("screen", lambda: screen_on(self._card.device, self._arrays))


class CardFrequency(CardHead):
    """Looks at the first `n` ids of the part."""

    def plan(self, hidden: Tensor, k: int) -> Plan:
        """One list for all."""
        return ScreenPlan(
            self._card.matrix, self._screen(int(self.knobs["n"])), hidden, k, self._card.fallback
        )

    def _screen(self, n: int) -> Screen:
        device, ids = self._card.device, self._arrays["ids"]
        return self._card.kept(f"frequency {n}", lambda: frequency_on(device, ids, n, self._dim))


class CardSvd(CardHead):
    """Looks at the `candidates` rows whose logits are largest in `width` rotated dimensions."""

    def fits(self, k: int) -> bool:
        """Nor are more candidates chosen on a card than a few thousand."""
        return super().fits(k) and svd_fits(self._vocab_size, int(self.knobs["candidates"]))

    def plan(self, hidden: Tensor, k: int) -> Plan:
        """The preview of all rows, then the best of it."""
        card, candidates = self._card, int(self.knobs["candidates"])
        preview = self._preview(int(self.knobs["width"]))
        return svd_plan(card.matrix, preview, hidden, k, card.fallback, candidates=candidates)

    def scores(self, hidden: Float32) -> Float32:
        """The preview of all logits, [B, V], as the head on the host has it."""
        return cast(SvdHead, self.plain).scores(hidden)

    def _preview(self, width: int) -> Preview:
        card, arrays = self._card, self._arrays
        return card.kept(
            f"preview {width}",
            lambda: preview_on(card.device, arrays, self._vocab_size, width),
        )


CARD_HEADS: Mapping[str, type[CardHead]] = {
    "exact": CardExact,
    "certified": CardCertified,
    "screen": CardScreen,
    "svd": CardSvd,
    "frequency": CardFrequency,
}
