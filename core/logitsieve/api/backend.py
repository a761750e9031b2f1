"""The part of an index that depends on its device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from logitsieve.api.results import ArrayLike


class Backend(Protocol):
    """Heads and engines for one device. `open_index` gives it to the index."""

    @property
    def name(self) -> str:
        """The device as its driver calls it, such as "NVIDIA A100-SXM4-40GB"."""
        ...

    @property
    def engine(self) -> Any:
        """The class of engines, a subclass of `logitsieve.decoding.engine.Engine`."""
        ...

    def make_heads(
        self,
        registry: Mapping[str, Any],
        softmax: Any,
        parts: Mapping[str, Mapping[str, Any]],
        knobs: Mapping[str, Mapping[str, float]],
        threads: int,
        fallback: str = "",
    ) -> Mapping[str, Any]:
        """`exact` and those heads of `knobs` that run on the device, in the registry's order.

        Rows that a head leaves go to `fallback`, as on the host. InvalidRequest where arrays are
        not as their part says.
        """
        ...

    def logits(self, exact: Any, hidden: ArrayLike, ids_BM: ArrayLike) -> Any:
        """Exact logits [B, M] by the head `exact` in a tensor; None unless both are tensors."""
        ...
