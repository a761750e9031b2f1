from typing import Any, cast

import numpy as np
import pytest

from logitsieve.api.keywords import BeamOptions, SampleOptions
from logitsieve.api.requests import Beams, Sampling, scored_ids
from tests.refusals import refused


def sampled(rows: int = 2, **changes: Any) -> Sampling:
    options: dict[str, Any] = {"samples": 1, "seeds": [1, 2], **changes}
    return Sampling.of(rows, options.pop("samples"), cast(SampleOptions, options))


def stepped(rows: int = 4, **changes: Any) -> Beams:
    options: dict[str, Any] = {"scores": None, "beams_in": 2, "beams_out": 3, **changes}
    scores, beams_in, beams_out = map(options.pop, ("scores", "beams_in", "beams_out"))
    return Beams.of(rows, scores, beams_in, beams_out, cast(BeamOptions, options))


def scored(token_ids: Any) -> np.ndarray:
    return scored_ids(token_ids, 2)


def test_how_to_draw() -> None:
    ready = sampled(samples=np.int64(3), step=2**64 - 1, temperature=0, top_k=5, top_p=0.9)
    assert ready[0] == 3
    assert ready[2:] == (2**64 - 1, 0.0, 5, 0.9, 0.0, True, True)
    one, other = (sampled(8, seeds=None).seeds for _ in range(2))
    assert one.shape == (8,)
    assert len({*one.tolist(), *other.tolist()}) == 16


@pytest.mark.parametrize(
    "seeds", [[1, 2**64 - 1], np.array([1, 2**64 - 1], np.uint64), [[1], [2**64 - 1]]]
)
def test_seeds_keep_every_bit(seeds: Any) -> None:
    found = sampled(seeds=seeds).seeds
    assert found.dtype == np.uint64
    assert found.tolist() == [1, 2**64 - 1]


@pytest.mark.parametrize("seed", [7, 2**64 - 1, np.uint64(1 << 63)])
def test_one_seed_is_spread_over_the_rows(seed: Any) -> None:
    found = sampled(5, seeds=seed).seeds
    assert found.dtype == np.uint64
    assert found.tolist() == [(int(seed) + row * 0x9E3779B97F4A7C15) % 2**64 for row in range(5)]


@pytest.mark.parametrize(
    ("make", "field", "values"),
    [
        (sampled, "samples", (0, -1, 1.0, True, None, "1", 1 << 21)),
        (sampled, "seeds", ([1], [1, 2, 3], [1.0, 2.0], [-1, 1], [1, 2**64], ["1", 2])),
        (sampled, "step", (-1, 2**64, 0.0, True)),
        (sampled, "temperature", (-1, np.nan, np.inf, 10**400, 1e5, "1", None, True)),
        (sampled, "top_k", (-1, 1.5, 2**31, False)),
        (sampled, "top_p", (0, -0.5, 1.1, np.nan, "1")),
        (sampled, "min_p", (-0.1, 1.1, np.nan, None)),
        (sampled, "log_probs", (0, 1.0, None, "no")),
        (stepped, "beams_in", (0, 3, 8, 1.0, True, None)),
        (stepped, "beams_out", (0, 5000, "2")),
        (stepped, "scores", ([0.0] * 3, ["0"] * 4, [np.nan] * 4, [[0], [0, 0]])),
        (stepped, "scores", ([-1e300] * 4, [-np.inf] * 4, [True] * 4)),
        (stepped, "lengths", ([0] * 5, [-1] * 4, [0.5] * 4, [2**31] * 4, [2**63] * 4)),
        (stepped, "finished", ([0] * 4, [True] * 3, [1.0] * 4)),
        (stepped, "eos_ids", ([-1], [2**31], [1.5], 3, ["1"], [True], None)),
        (stepped, "length_penalty", (np.nan, 11, -11, "1", None)),
        (scored, "token_ids", ([1], [1, 2, 3], [[1], [2, 3]], [[], []], [[[1]], [[2]]], 3, None)),
        (scored, "token_ids", ([1.0, 2.0], [True, False], ["1", "2"], [-1, 2], [1, 2**31])),
    ],
)
def test_wrong_arguments(make: Any, field: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with refused(field):
            make(**{field: value})


def test_hypotheses() -> None:
    ready = stepped(
        scores=[[-1, -2], [-3, -4.5]],
        lengths=np.arange(4),
        finished=np.array([True, False, False, True]),
        eos_ids=np.array([2, 5]),
        length_penalty=1,
    )
    assert ready.scores.tolist() == [-1, -2, -3, -4.5]
    assert ready.lengths.tolist() == [0, 1, 2, 3]
    assert ready.finished.tolist() == [True, False, False, True]
    assert (ready.eos_ids, ready.length_penalty) == ((2, 5), 1.0)
    assert ready.scores.dtype == np.float32
    assert ready.lengths.dtype == np.int32
    assert ready.finished.dtype == np.bool_
    first = stepped()
    assert not np.concatenate([first.scores, first.lengths, first.finished]).any()
    with refused("eos_ids", "at least one, where hypotheses have"):
        stepped(finished=[True, False, False, False])


@pytest.mark.parametrize("form", [[[1], [2]], [1, 2], np.array([1, 2], np.uint8), ((1,), (2,))])
def test_targets(form: Any) -> None:
    ready = scored(form)
    assert ready.tolist() == [[1], [2]]
    assert ready.dtype == np.int32
    assert ready.flags.c_contiguous
