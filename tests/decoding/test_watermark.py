from collections.abc import Callable, Sequence
from math import lgamma
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.watermark import WatermarkKey
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.watermark import detect_watermark, gamma_tail
from logitsieve.heads import Softmax
from logitsieve.index import open_index
from tests.oracle import chi_square_p
from tests.synthetic import write_heads

V, D, LENGTH = 300, 8, 60
KEY, OTHER = WatermarkKey(bytes(range(16))), WatermarkKey(bytes(range(1, 17)))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> LocalDecoder:
    weight = np.random.default_rng(0).standard_normal((V, D), np.float32) / 2
    path = tmp_path_factory.mktemp("marked") / "m" / "1"
    return LocalDecoder(open_index(write_heads(path, Softmax(weight, np.zeros(V, np.float32)))))


def contexts_after(texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Hidden states [B, D] by the last id: softmaxes of some bits."""
    table = np.random.default_rng(1).standard_normal((V + 1, D), np.float32)
    return table[[text[-1] if text else V for text in texts]]


def drawn(
    decoder: LocalDecoder, key: WatermarkKey | None, rows: int, **options: Any
) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in range(rows)]
    own = np.arange(rows, dtype=np.uint64) * np.uint64(977)
    for step in range(LENGTH):
        seeds, at = (own, step) if key is None else (key.seeds(texts, own), 0)
        reply = decoder.sample(contexts_after(texts), seeds=seeds, step=at, **options)
        for text, one in zip(texts, reply.ids[:, 0].tolist(), strict=True):
            text.append(one)
    return texts


def test_a_key_knows_its_texts_and_no_others(decoder: LocalDecoder) -> None:
    marked = drawn(decoder, KEY, 40)
    assert len({tuple(text) for text in marked}) == 40
    p_values = [detect_watermark(KEY, text).p_value for text in marked]
    assert max(p_values) < 1e-6
    for key, texts in ((OTHER, marked), (KEY, drawn(decoder, None, 40))):
        others = np.sort([detect_watermark(key, text).p_value for text in texts])
        gap = np.abs(others - (np.arange(40) + 0.5) / 40).max() + 0.5 / 40
        assert gap < 1.95 / 40**0.5  # Kolmogorov-Smirnov at 0.001


@pytest.mark.parametrize("options", [{"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.05}], ids=str)
def test_filters_and_temperatures_leave_the_mark(
    decoder: LocalDecoder, options: dict[str, Any]
) -> None:
    texts = drawn(decoder, KEY, 5, temperature=1.2, **options)
    assert all(detect_watermark(KEY, text).p_value < 1e-6 for text in texts)


def test_averaged_over_keys_the_law_is_the_softmax(decoder: LocalDecoder) -> None:
    keys = [WatermarkKey(number.to_bytes(16, "little")) for number in range(4000)]
    text, own = [3, 1, 4, 1], np.zeros(1, np.uint64)
    seeds = np.concatenate([key.seeds([text], own) for key in keys])
    [state] = contexts_after([text])
    ids = decoder.sample(np.tile(state, (len(keys), 1)), seeds=seeds).ids[:, 0]
    logits = decoder.topk(state[None], V)
    law = np.zeros(V)
    law[logits.ids[0]] = np.exp(logits.logits[0] - logits.logits[0].max())
    law /= law.sum()
    often = law * len(keys) >= 5
    counts = np.bincount(ids, minlength=V)
    seen = np.append(counts[often], counts[~often].sum())
    assert chi_square_p(seen, np.append(law[often], law[~often].sum())) > 1e-3


def test_new_texts_and_repeated_contexts_are_drawn_by_their_own_seeds() -> None:
    own, others = np.array([1], np.uint64), np.array([2], np.uint64)

    def follows(text: list[int]) -> bool:
        return bool(KEY.seeds([text], own) == KEY.seeds([text], others))

    assert not follows([1, 2, 3])
    assert follows([1, 2, 3, 4])
    assert KEY.seeds([[9, 1, 2, 3, 4]], own).tolist() == [KEY.seed_after([1, 2, 3, 4])]
    assert not follows([1, 2, 3, 4, 5, 1, 2, 3, 4])
    assert not follows([7] * 5)
    assert KEY.seeds([[7] * 5], own) != KEY.seeds([[7] * 6], own)
    found = detect_watermark(KEY, [1, 2, 3, 4, 5, 1, 2, 3, 4, 6])
    assert found.tokens == 5
    assert detect_watermark(KEY, [1, 2, 3, 4]) == (0.0, 1.0, 0)


def test_the_tail_is_the_gamma_laws() -> None:
    """Against Simpson's rule over its density."""
    for count, score in ((1, 0.7), (5, 2.0), (200, 180.0), (200, 260.0)):
        x = np.linspace(score, score + 400, 400_001)
        density = np.exp((count - 1) * np.log(x) - x - lgamma(count))
        weights = np.where(np.arange(x.size) % 2, 4, 2)
        weights[[0, -1]] = 1
        assert gamma_tail(count, score) == pytest.approx(density @ weights / 3000, rel=1e-9)
    assert gamma_tail(0, 0.0) == 1.0
    assert gamma_tail(10, 9000.0) == 0.0


BAD: dict[str, Callable[[], object]] = {
    "secret: got 15 bytes, allowed: 16 to 64 bytes": lambda: WatermarkKey(bytes(15)),
    "secret: got 65 bytes": lambda: WatermarkKey(bytes(65)),
    "secret: got str": lambda: WatermarkKey("0123456789abcdef"),  # type: ignore[arg-type]
    "width: got 0": lambda: WatermarkKey(bytes(16), 0),
    "ids: got -1": lambda: detect_watermark(KEY, [-1]),
}


@pytest.mark.parametrize("said", BAD)
def test_bad_keys_are_named_and_none_is_shown(said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        BAD[said]()
    assert "secret" not in repr(WatermarkKey(b"a very secret key"))
