"""Estimates of log Z by samples: unbiased, with an honest error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.normalizers import SAMPLED
from logitsieve.index import HeadEntry, open_index, write_index
from logitsieve.index_builder.fit_svd import preview_arrays
from tests.decoding.normalizers.normalized import CONSTRAINTS, normalized, truth
from tests.oracle import log_sum_exp, logits64
from tests.synthetic import make_hidden, make_softmax


class Wide:
    """V = 4000, of which the best 128 are looked at."""

    def __init__(self, folder: Path) -> None:
        self.softmax = make_softmax(4000, 16, seed=3, scale=0.6)
        self.hidden = make_hidden(400, 16, seed=4)
        logits = logits64(self.softmax.weight, self.softmax.bias, self.hidden)
        self.log_z = np.array([log_sum_exp(row) for row in logits])
        path = write_index(
            folder / "wide" / "1",
            softmax=self.softmax,
            parts={"svd": preview_arrays(self.softmax, 16)},
            heads={"exact": HeadEntry(), "svd": HeadEntry("svd", {"width": 16})},
            default_head="svd",
        )
        self.index = open_index(path)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Wide:
    return Wide(tmp_path_factory.mktemp("wide"))


def test_sampled_errs_as_it_says_and_to_no_side(wide: Wide) -> None:
    head = wide.index.head("svd")
    found = SAMPLED.log_z(wide.index, head, wide.hidden, 1, None, 1.0)
    assert found.value is not None
    assert found.error is not None
    off = (found.value - wide.log_z) / found.error
    assert abs(off.mean()) < 4 / np.sqrt(len(off))
    assert 0.9 < off.std() < 1.2
    assert (found.error > 0).all()


def test_sampled_depends_on_its_row_alone(wide: Wide) -> None:
    head = wide.index.head("svd")
    together = SAMPLED.log_z(wide.index, head, wide.hidden[:9], 1, None, 1.0)
    for row in range(9):
        one = wide.hidden[row : row + 1]
        alone = SAMPLED.log_z(wide.index, head, one, 1, None, 1.0)
        assert together.value is not None
        assert alone.value is not None
        assert alone.value[0] == together.value[row]


@pytest.mark.parametrize("constraints", CONSTRAINTS)
@pytest.mark.parametrize("scale", [1e-4, 1.0])
def test_sampled_errs_by_nothing_where_all_is_looked_at(
    decoder: LocalDecoder, constraints: str, scale: float
) -> None:
    asked = CONSTRAINTS[constraints]
    for head in ("screen", "certified", "exact"):
        found = normalized(decoder, "sampled", constraints=asked, head=head, scale=scale)
        assert found.value is not None
        assert found.error is not None
        sure = found.error == 0
        wanted = truth(asked, scale)
        np.testing.assert_allclose(found.value[sure], wanted[sure], rtol=3e-7, atol=3e-7)
        assert head == "screen" or sure.all()
