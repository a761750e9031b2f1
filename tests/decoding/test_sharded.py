"""A decoder over an index in shards gives the replies of the decoder over the whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder, ShardedDecoder, decoder_of
from logitsieve.index import HeadEntry, open_index, split_index, write_index
from tests.decoding.drawn import constraints_of
from tests.sharded import SHARDS, D, V, sketch_of, softmax_of
from tests.synthetic import make_hidden, screen_arrays

ROWS = 6
Decoders = Callable[[int, bool], tuple[LocalDecoder, LocalDecoder]]


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> Decoders:
    """(shards, tied) -> decoders over an index and over the same in shards."""
    folder: Path = tmp_path_factory.mktemp("models")

    @cache
    def whole(tied: bool) -> Path:
        softmax = softmax_of(tied)
        heads = {
            "exact": HeadEntry(),
            "certified": HeadEntry("sketch"),
            "screen": HeadEntry("screen", {"probes": 2.0}),
        }
        parts = {"sketch": sketch_of(tied), "screen": screen_arrays(softmax)}
        out = folder / f"whole{'-tied' * tied}" / "1"
        return write_index(out, softmax=softmax, parts=parts, heads=heads, default_head="screen")

    def opened(path: Path) -> LocalDecoder:
        return decoder_of(open_index(path, kernel_cache=kernel_cache), name="lm")

    @cache
    def pair(shards: int, tied: bool) -> tuple[LocalDecoder, LocalDecoder]:
        out = folder / f"shards-{shards}{'-tied' * tied}" / "1"
        return opened(whole(tied)), opened(split_index(whole(tied), out, shards))

    return pair


def assert_equal(one: Any, other: Any, but: tuple[str, ...] = ()) -> None:
    """Replies with the same arrays, and answers with the same rows; `but` are fields left out."""
    for name in one._fields[:-1]:
        if name not in but:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name in ("head", "knobs", "normalizer", "exact", "log_z", "log_z_low", "log_z_high"):
        if name not in but:
            values = getattr(one.answer, name), getattr(other.answer, name)
            np.testing.assert_array_equal(*values, err_msg=name)


LOG_Z = ("log_probs", "log_z", "log_z_low", "log_z_high", "exact")
requests = {
    "shards": st.sampled_from(SHARDS),
    "tied": st.booleans(),
    "seed": st.integers(0, 10_000),
    "size": st.sampled_from([0.1, 1.0, 5.0]),
    "head": st.sampled_from(["exact", "certified", "screen", ""]),
    "constraints": st.none() | constraints_of(V, ROWS),
}


@settings(max_examples=60, deadline=None)
@given(**requests, k=st.sampled_from([1, 5, 40]), data=st.data())
def test_topk_and_an_exact_log_z(
    decoders: Decoders,
    shards: int,
    tied: bool,
    seed: int,
    size: float,
    head: str,
    constraints: Constraints | None,
    k: int,
    data: st.DataObject,
) -> None:
    normalizer: Any = data.draw(st.sampled_from([None, "exact", "candidates"]))
    hidden = make_hidden(ROWS, D, seed=seed, scale=size)
    replies: list[Any] = []
    for decoder in decoders(shards, tied):
        try:
            replies.append(
                decoder.topk(hidden, k, head=head, normalizer=normalizer, constraints=constraints)
            )
        except InvalidRequest as error:  # nothing is left to answer
            replies.append(str(error))
    if isinstance(replies[0], str):
        assert replies[0] == replies[1]
    elif normalizer == "candidates" and head == "certified":  # which depend on the shards
        assert_equal(replies[0], replies[1], but=("log_z",))
    else:
        assert_equal(*replies)


@settings(max_examples=40, deadline=None)
@given(**requests)
def test_scores(
    decoders: Decoders,
    shards: int,
    tied: bool,
    seed: int,
    size: float,
    head: str,
    constraints: Constraints | None,
) -> None:
    hidden = make_hidden(ROWS, D, seed=seed, scale=size)
    targets = np.random.default_rng(seed).integers(0, V, (ROWS, 3))
    for normalizer in ("exact", "certified"):
        replies: list[Any] = []
        for decoder in decoders(shards, tied):
            options: dict[str, Any] = {"head": head, "normalizer": normalizer}
            try:
                replies.append(decoder.score(hidden, targets, constraints=constraints, **options))
            except InvalidRequest as error:
                replies.append(str(error))
        if isinstance(replies[0], str):
            assert replies[0] == replies[1]
            continue
        assert_equal(replies[0], replies[1], but=LOG_Z if normalizer == "certified" else ())
        one, other = replies[0].answer, replies[1].answer
        assert (one.log_z_low <= other.log_z_high).all()
        assert (other.log_z_low <= one.log_z_high).all()


@settings(max_examples=60, deadline=None)
@given(
    **requests,
    filters=st.fixed_dictionaries(
        {},
        optional={
            "top_k": st.sampled_from([1, 9]),
            "top_p": st.sampled_from([0.2, 0.9]),
            "min_p": st.sampled_from([0.01, 0.3]),
            "temperature": st.sampled_from([0.0, 0.3, 2.0]),
        },
    ),
    samples=st.sampled_from([1, 8]),
)
def test_draws(
    decoders: Decoders,
    shards: int,
    tied: bool,
    seed: int,
    size: float,
    head: str,
    constraints: Constraints | None,
    filters: dict[str, Any],
    samples: int,
) -> None:
    hidden, head = make_hidden(ROWS, D, seed=seed, scale=size), head.replace("screen", "exact")
    replies: list[Any] = []
    for decoder in decoders(shards, tied):
        seeds = np.arange(ROWS) + seed
        options = {"head": head, "seeds": seeds, "step": seed, **filters}
        try:
            replies.append(decoder.sample(hidden, samples, constraints=constraints, **options))
        except InvalidRequest as error:
            replies.append(str(error))
    if isinstance(replies[0], str):
        assert replies[0] == replies[1]
    else:
        assert_equal(replies[0], replies[1], but=() if head == "exact" else LOG_Z)


@settings(max_examples=40, deadline=None)
@given(**requests, beams=st.sampled_from([1, 2, 3]), alpha=st.sampled_from([0.0, 0.6]))
def test_beams(
    decoders: Decoders,
    shards: int,
    tied: bool,
    seed: int,
    size: float,
    head: str,
    constraints: Constraints | None,
    beams: int,
    alpha: float,
) -> None:
    random = np.random.default_rng(seed)
    hidden = make_hidden(ROWS, D, seed=seed, scale=size)
    hidden[ROWS // 2 :] = hidden[: ROWS // 2]  # equal hypotheses, whose pairs tie
    options: dict[str, Any] = {
        "beams_in": beams,
        "beams_out": 4,
        "length_alpha": alpha,
        "lengths": random.integers(0, 9, ROWS),
        "finished": random.random(ROWS) < 0.2,
        "eos_ids": [7],
        "head": head,
        "constraints": constraints,
    }
    scores = -random.integers(0, 3, ROWS).astype(np.float32)
    one, other = (each.beam_step(hidden, scores, **options) for each in decoders(shards, tied))
    assert_equal(one, other)


@pytest.mark.parametrize("width", [1e-2, 1e-6])
def test_a_width_is_kept(decoders: Decoders, width: float) -> None:
    _, parts = decoders(3, False)
    hidden = make_hidden(ROWS, D)
    for reply in (
        parts.topk(hidden, 3, width=width),
        parts.sample(hidden, 2, width=width, top_p=0.9),
        parts.score(hidden, [[1]] * ROWS, width=width),
    ):
        low, high = reply.answer.log_z_low, reply.answer.log_z_high
        assert low is not None
        assert high is not None
        printed = 2 * np.spacing(high)  # both ends are rounded outward to float32
        assert (high.astype(np.float64) - low <= width + printed).all()


@pytest.mark.parametrize("rows", [1, 31, 64])
def test_threads_change_no_bit(decoders: Decoders, kernel_cache: Path, rows: int) -> None:
    _, parts = decoders(5, True)
    index = open_index(parts.index.path, threads=3, kernel_cache=kernel_cache)
    threaded, hidden = ShardedDecoder(index, name="lm"), make_hidden(rows, D)
    for head in ("exact", "certified", "screen"):
        replies = [
            decoder.topk(hidden, 7, head=head, normalizer="certified")
            for decoder in (parts, threaded)
        ]
        assert_equal(replies[0], replies[1])
    for options in ({}, {"top_p": 0.5}, {"top_k": 5}):
        draws = [decoder.sample(hidden, 3, seeds=1, **options) for decoder in (parts, threaded)]
        assert_equal(draws[0], draws[1])


def test_what_needs_all_of_w_is_refused_with_the_reason(decoders: Decoders) -> None:
    _, parts = decoders(3, False)
    hidden = make_hidden(1, D)
    with pytest.raises(InvalidRequest, match="3 shards"):
        parts.sample(hidden, head="screen")
    with pytest.raises(InvalidRequest, match="'sampled'"):
        parts.topk(hidden, 1, normalizer="sampled")
    with pytest.raises(InvalidRequest, match="no head 'svd'"):
        parts.topk(hidden, 1, normalizer="lowrank")


def test_it_is_a_decoder_of_its_own_kind(decoders: Decoders) -> None:
    whole, parts = decoders(3, False)
    assert isinstance(parts, ShardedDecoder)
    with pytest.raises(InvalidRequest, match="in one piece"):
        ShardedDecoder(whole.index)
    with pytest.raises(InvalidRequest, match="in shards, allowed: LocalDecoder for one piece"):
        LocalDecoder(parts.index)
    parts.warm()


def test_a_shard_alone_is_refused(decoders: Decoders, kernel_cache: Path) -> None:
    _, parts = decoders(3, False)
    alone = open_index(parts.index.path / "shards" / "2", kernel_cache=kernel_cache)
    assert alone.vocab_size < V
    with pytest.raises(InvalidRequest, match=f"rows 512 .. 1279 of {V}, allowed: a whole index"):
        LocalDecoder(alone)
