from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logitsieve.decoding import NORMALIZERS, LocalDecoder
from logitsieve.decoding.normalizers import over_vocabulary
from logitsieve.index import open_index
from logitsieve.types.decoder import NORMALIZER_CODES
from logitsieve.types.errors import InvalidRequest
from tests.server.running import write_model
from tests.synthetic import make_hidden


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> LocalDecoder:
    folder = tmp_path_factory.mktemp("models")
    return LocalDecoder(open_index(write_model(folder), kernel_cache=folder / "kernels"))


def log_sum_exp(logits: np.ndarray) -> float:
    wide = logits.astype(np.float64)
    return float(wide.max() + np.log(np.exp(wide - wide.max()).sum()))


def test_exact_is_over_the_vocabulary_whatever_head_answers(decoder: LocalDecoder) -> None:
    hidden = make_hidden(4)
    reply = decoder.topk(hidden, 5, normalizer="exact")
    everything = decoder.topk(hidden, 300, head="exact")
    assert reply.answer.log_z is not None
    expected = np.array([log_sum_exp(row) for row in everything.logits], np.float32)
    np.testing.assert_array_equal(reply.answer.log_z, expected)
    assert reply.answer.normalizer == "exact"
    probabilities = np.exp(decoder.topk(hidden, 300, normalizer="exact").log_probs())
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)


def test_candidates_is_over_what_was_scanned(decoder: LocalDecoder) -> None:
    hidden = make_hidden(4)
    reply = decoder.topk(hidden, 5, normalizer="candidates")
    found = decoder.index.head("screen").candidates(hidden, 5)
    assert reply.answer.log_z is not None
    for row, (start, stop) in enumerate(zip(found.offsets[:-1], found.offsets[1:], strict=True)):
        assert reply.answer.log_z[row] == np.float32(log_sum_exp(found.logits[start:stop]))
    full = decoder.topk(hidden, 5, normalizer="exact").answer.log_z
    assert full is not None
    assert (reply.answer.log_z < full).all()


def test_slices_do_not_change_a_row(decoder: LocalDecoder) -> None:
    hidden = make_hidden(7)
    exact = decoder.index.head("exact")
    whole = over_vocabulary(exact, exact, hidden, 1, 300)
    by_two = over_vocabulary(exact, exact, hidden, 1, 1 << 21)
    np.testing.assert_array_equal(whole, by_two)


@pytest.mark.parametrize("name", ["lowrank", "none", 3])
def test_an_unknown_one_names_those_that_are_built(decoder: LocalDecoder, name: Any) -> None:
    with pytest.raises(InvalidRequest, match="candidates, exact") as caught:
        decoder.topk(make_hidden(1), 1, normalizer=name)
    assert caught.value.field == "normalizer"


def test_every_normalizer_has_a_code() -> None:
    assert NORMALIZERS.keys() <= NORMALIZER_CODES.keys()
