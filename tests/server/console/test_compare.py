from __future__ import annotations

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.server.console.compare import compare
from logitsieve.server.models.routes import Routes
from tests.server.console.conftest import KEPT
from tests.synthetic import make_hidden


def test_a_version_agrees_with_itself(demo: LocalDecoder) -> None:
    facts = compare(demo, demo, 3, {"head": "exact"})
    assert (facts["same_best"], facts["shared"], facts["differing"]) == (1.0, 1.0, 0)
    assert facts["rows"] == KEPT


def test_where_two_versions_differ(demo: LocalDecoder, routes: Routes) -> None:
    other = routes.served("demo@2").decoder
    facts = compare(demo, other, 3, {"head": "exact"})
    one, two = (d.topk(make_hidden(KEPT), 3, head="exact").ids for d in (demo, other))
    sets = [set(a) & set(b) for a, b in zip(one.tolist(), two.tolist(), strict=True)]
    assert facts["shared"] == pytest.approx(sum(map(len, sets)) / 3 / KEPT)
    assert facts["differing"] == sum(len(each) < 3 for each in sets)
    row = facts["contexts"][0]
    assert [word["id"] for word in row["one"]] == one[row["context"]].tolist()
    assert facts["same_words"]


def test_a_large_matrix_is_compared_on_fewer_contexts(demo: LocalDecoder) -> None:
    assert compare(demo, demo, 3, {}, most_products=5 * 300 * 24)["rows"] == 5


def test_what_cannot_be_compared(demo: LocalDecoder, bare: LocalDecoder) -> None:
    for one, other, k, field in (
        (demo, bare, 3, "other"),
        (demo, demo, 21, "k"),
        (bare, bare, 3, "model"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            compare(one, other, k, {})
        assert caught.value.field == field
