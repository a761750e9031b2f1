"""Heads that look at the lists of the best clusters: route by centroids, scan lists exactly.

Time O(C D + S D) a row with S rows scanned; memory C D floats and the lists.
Shape letters: D hidden size, K answers, C clusters, P probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from logitsieve.api.results import ArrayLike, Candidates, Int64
from logitsieve.heads._base.head import Softmax, ready_request, refuse_row
from logitsieve.heads._base.kernel_head import KernelHead, unproven
from logitsieve.heads._base.spec import Arrays
from logitsieve.kernels.screen.route import screen_descriptor
from logitsieve.kernels.screen.screen import screen_candidates, screen_topk


class ClusteredHead(KernelHead):
    """Looks at the lists of each row's best clusters, as many as its knob `probed` says."""

    probed: ClassVar[str]
    disjoint: ClassVar[bool] = False  # whether the part says that no id is in two lists

    def _prepare(self) -> None:
        self._kernel = screen_topk.entry()

    @classmethod
    def clamp_knobs(
        cls, knobs: Mapping[str, float], arrays: Arrays, softmax: Softmax
    ) -> dict[str, float]:
        """No more clusters than there are."""
        return {**knobs, cls.probed: min(knobs[cls.probed], len(arrays["centroids"]))}

    def _apply_knobs(self) -> None:
        self._describe_lists(self._arrays, int(self.knobs[self.probed]))

    def _describe_lists(self, arrays: Arrays, probes: int) -> None:
        descriptor, self._described = screen_descriptor(
            self._softmax.descriptor,
            arrays["centroids"],
            arrays["offsets"],
            arrays["ids"],
            probes,
            biases=arrays.get("biases"),
            disjoint=self.disjoint,
            escalate=self.knobs.get("escalate", -1.0),
            reaches=arrays.get("reaches"),
            sketch=self._sketch(),
        )
        self._describe(descriptor)

    def _sketch(self) -> Int64 | None:
        """Descriptor of the sketch that lists are scanned through; None: all logits are exact."""
        return None

    def candidates(self, hidden: ArrayLike, k: int) -> Candidates:
        """The rows of W that `topk` would look at; `upper` is +inf: nothing is proven."""
        hidden, _, k = ready_request(hidden, k, self._dim, self._vocab_size)
        status, offsets, ids, logits = screen_candidates(self._address, hidden, k)
        if status < 0:
            refuse_row(-1 - status)
        listed = unproven(offsets, ids, logits)
        return self._fill_short(listed, hidden, k) if status else listed
