from collections.abc import Callable, Iterable

import pytest


@pytest.fixture
def always_a_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    """For few words all logits may take less time, and the sketch is left out."""

    def widest(choices: Iterable[int], us: Callable[[int], float]) -> int:
        return max(choices, key=lambda first: (first, us(first)))

    monkeypatch.setattr("logitsieve.index_builder.fit.sketch.fastest", widest)
