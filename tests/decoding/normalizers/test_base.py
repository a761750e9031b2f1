"""Rules that hold for every normalizer, and the places that list their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.decoder import NORMALIZER_CODES
from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import NORMALIZERS, LocalDecoder
from logitsieve.decoding.normalizers import Prices
from logitsieve.index import open_index
from logitsieve.v1 import decoder_pb2 as pb
from tests.decoding.normalizers.normalized import CONSTRAINTS, HIDDEN
from tests.server.running import write_model
from tests.synthetic import make_hidden

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("normalizer", ["exact", "lowrank", "candidates", "certified"])
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_probabilities_of_all_ids_sum_to_one(
    decoder: LocalDecoder, constraints: str, normalizer: Any
) -> None:
    asked, every = CONSTRAINTS[constraints], np.tile(np.arange(300), (5, 1))
    reply = decoder.score(HIDDEN, every, constraints=asked, normalizer=normalizer)
    total, answer = np.exp(reply.log_probs.astype(np.float64)).sum(axis=1), reply.answer
    if normalizer == "candidates" and constraints == "one left":
        return  # which is no candidate
    if normalizer != "certified":
        np.testing.assert_allclose(total, 1, rtol=3e-6)
        return
    assert answer.log_z is not None
    assert answer.log_z_low is not None
    assert answer.log_z_high is not None
    assert (np.log(total) >= answer.log_z_low - answer.log_z - 3e-6).all()
    assert (np.log(total) <= answer.log_z_high - answer.log_z + 3e-6).all()


def test_what_a_normalizer_needs_is_named(tmp_path: Path) -> None:
    decoder = LocalDecoder(open_index(write_model(tmp_path)))
    names: list[Any] = ["lowrank", "certified"]
    for name in names:
        with pytest.raises(InvalidRequest, match="the index has exact, screen") as caught:
            decoder.topk(make_hidden(1), 1, normalizer=name)
        assert caught.value.field == "normalizer"


@pytest.mark.parametrize("name", ["none", 3])
def test_an_unknown_one_names_those_that_are_built(decoder: LocalDecoder, name: Any) -> None:
    with pytest.raises(InvalidRequest, match="candidates, lowrank, sampled") as caught:
        decoder.topk(make_hidden(1), 1, normalizer=name)
    assert caught.value.field == "normalizer"


def _names_in(text: str) -> set[str]:
    return {name for name in NORMALIZERS if f"`{name}`" in text}


PLACES: dict[str, Mapping[str, int] | set[str]] = {
    "api.decoder.NORMALIZER_CODES and NormalizerName": NORMALIZER_CODES,
    "decoder.proto's enum Normalizer": {
        name.removeprefix("NORMALIZER_").lower(): code
        for name, code in pb.Normalizer.items()
        if code
    },
    "docs/decoding.md": _names_in((ROOT / "docs/decoding.md").read_text(encoding="utf-8")),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", NORMALIZERS)
def test_every_place_has_every_normalizer(place: str, name: str) -> None:
    names = PLACES[place]
    assert name in names, f"{place} lacks the normalizer {name!r}"
    if isinstance(names, Mapping):
        assert names[name] == NORMALIZERS[name].code, f"{place} has another code for {name!r}"


@pytest.mark.parametrize("place", PLACES)
def test_no_place_has_another_one(place: str) -> None:
    assert not set(PLACES[place]) - set(NORMALIZERS), f"{place} has one that is not built"


def test_the_gpu_finds_only_normalizers_that_there_are() -> None:
    pytest.importorskip("torch")
    from logitsieve.gpu.engine import FOUND_ON_GPU

    assert set(FOUND_ON_GPU) <= set(NORMALIZERS), "gpu/engine.py has one that is not built"


@pytest.mark.parametrize("name", NORMALIZERS)
def test_its_cost_is_at_least_what_it_reads(name: str) -> None:
    passes = {"certified": 30.0, "svd": 40.0, "exact": 50.0}
    prices = Prices(7.0, 0.5, 10_000, passes.__getitem__)
    wanted = {"candidates": 7.0, "sampled": 7.0 + 20 * 100 * 0.5, "lowrank": 40.0}
    assert NORMALIZERS[name].cost(prices) == wanted.get(name, passes.get(name))
