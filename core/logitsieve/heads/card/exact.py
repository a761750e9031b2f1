"""The exact head on a card."""

from __future__ import annotations

from torch import Tensor

from logitsieve.heads.card.head import CardHead
from logitsieve.kernels.gpu.plans import Plan
from logitsieve.kernels.gpu.plans.exact import ExactPlan


class CardExactHead(CardHead):
    """Looks at every row of W."""

    def plan(self, hidden: Tensor, k: int) -> Plan:
        """One pass over W."""
        return ExactPlan(self._card.matrix, hidden, k)
