from unicodedata import name

import numpy as np
import pytest

from logitsieve.index_builder.capture.llamacpp import LENGTH, SKIPPED, primer, read_primer
from logitsieve.llamacpp import LlamaContext
from tests.llamacpp.small_model import Make

SCRIPTS = (
    *("LATIN", "GREEK", "CYRILLIC", "HEBREW", "ARABIC"),
    *("DEVANAGARI", "HIRAGANA", "CJK UNIFIED", "HANGUL"),
)


def test_passages_are_of_many_kinds() -> None:
    passages = primer()
    assert len(passages) == len(set(passages)) == 43
    assert all(150 <= len(passage.encode()) <= 700 for passage in passages)
    assert all(passage == passage.strip() for passage in passages)
    for script in SCRIPTS:
        shares = [
            sum(name(letter, "").startswith(script) for letter in one) / len(one)
            for one in passages
        ]
        assert max(shares) > 0.3, script


@pytest.mark.usefixtures("llama_wheel")
def test_contexts_are_of_each_passages_beginning_in_the_order_of_places(make_gguf: Make) -> None:
    with LlamaContext(make_gguf(), positions=LENGTH) as context:
        rows = read_primer(context)
        context.headless = True
        per_passage = []
        for passage in primer():
            ids = context.begin + context.tokenize(passage, begin=False, special=False)
            context.forget()
            per_passage.append(context.read(ids[:LENGTH], every=True)[SKIPPED:])
    count = len(per_passage)
    assert len(rows) == sum(map(len, per_passage)) > (LENGTH - SKIPPED) * count * 0.9
    np.testing.assert_array_equal(rows[:count], [one[0] for one in per_passage])
    np.testing.assert_array_equal(rows[-1], per_passage[-1][-1])
