"""Answers without shards that cannot be asked: proven where bounds allow, else marked."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest, ShardUnavailable, Unavailable
from logitsieve.api.results import RowRange
from logitsieve.decoding import LocalDecoder, ShardedDecoder
from logitsieve.heads.sharded import Shard, ShardedSoftmax
from logitsieve.index import HeadEntry, Index, open_index, split_index, write_index
from tests.sharded import D, V, sketch_of, softmax_of
from tests.synthetic import make_hidden, screen_arrays

ROWS, K = 200, 3
HIDDEN = make_hidden(ROWS, D)
SPANS = [(0, 512), (512, 768), (1280, V - 1280)]
HEADS = ("exact", "certified", "screen")


class DeadShard:
    """The proxy of a shard of which no question is answered."""

    def __init__(self, shard: Shard) -> None:
        self.first, self.rows, self.remote = shard.first, shard.rows, True
        self.dim, self.norms = shard.dim, shard.norms

    def __getattr__(self, name: str) -> Any:
        raise ShardUnavailable(self.first, self.rows)


def with_dead(index: Index, numbers: tuple[int, ...]) -> Index:
    """The index, but for shards that do not answer any more."""
    assert isinstance(index.softmax, ShardedSoftmax)
    shards: Any = [
        DeadShard(each) if number in numbers else each
        for number, each in enumerate(index.softmax.shards)
    ]
    softmax = ShardedSoftmax(shards, index.softmax.bounds, index.softmax.replicated)
    heads: dict[str, Any] = {}
    for name in index.heads:
        head: Any = index.head(name)
        heads[name] = head.over(softmax, heads)
    other = copy(index)
    other._softmax, other._heads = softmax, heads
    return other


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """An index, the same in three shards with bounds, and in three without."""
    models, softmax = tmp_path_factory.mktemp("models"), softmax_of(False)
    parts = {"sketch": sketch_of(False), "screen": screen_arrays(softmax)}
    heads = {
        "exact": HeadEntry(),
        "certified": HeadEntry("sketch"),
        "screen": HeadEntry("screen", {"probes": 2.0}),
    }
    out = models / "lm" / "1"
    whole = write_index(out, softmax=softmax, parts=parts, heads=heads, default_head="certified")
    bounded = split_index(whole, models / "bounded" / "1", 3, bounds=True)
    return whole, bounded, split_index(whole, models / "plain" / "1", 3)


@pytest.fixture(scope="module")
def whole(paths: tuple[Path, ...], kernel_cache: Path) -> LocalDecoder:
    return LocalDecoder(open_index(paths[0], kernel_cache=kernel_cache))


@pytest.fixture(scope="module")
def bounded(paths: tuple[Path, ...], kernel_cache: Path) -> Index:
    return open_index(paths[1], kernel_cache=kernel_cache)


@pytest.fixture(scope="module")
def replicated(paths: tuple[Path, ...], tmp_path_factory: Any, kernel_cache: Path) -> Index:
    """With bounds, and rows that are chosen by the contexts that it is asked about."""
    out = tmp_path_factory.mktemp("replicated") / "lm" / "1"
    path = split_index(paths[0], out, 3, contexts=HIDDEN, bounds=True)
    return open_index(path, kernel_cache=kernel_cache)


@pytest.fixture(scope="module")
def plain(paths: tuple[Path, ...], kernel_cache: Path) -> Index:
    return open_index(paths[2], kernel_cache=kernel_cache)


def spans(numbers: tuple[int, ...]) -> tuple[RowRange, ...]:
    return tuple(RowRange(*SPANS[number]) for number in numbers)


def calls(decoder: LocalDecoder, **options: Any) -> list[Any]:
    """Every method's reply."""
    hidden = HIDDEN[:6]
    return [
        decoder.topk(hidden, K, normalizer="exact", **options),
        decoder.score(hidden, [[5, 600, V - 1]] * 6, normalizer="exact", **options),
        decoder.score(hidden, [[5, 600, V - 1]] * 6, **options),
        decoder.sample(hidden, 4, seeds=1, **options),
        decoder.sample(hidden, 4, seeds=1, top_p=0.7, **options),
        decoder.sample(hidden, 4, seeds=1, top_k=9, **options),
        decoder.beam_step(hidden, beams_in=2, beams_out=3, **options),
    ]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dead", [(0,), (1,), (2,), (0, 2)])
def test_what_is_called_proven_is_the_answer_of_all_rows(
    whole: LocalDecoder, bounded: Index, head: str, dead: tuple[int, ...]
) -> None:
    decoder = ShardedDecoder(with_dead(bounded, dead), missing="answer")
    wanted, reply = whole.topk(HIDDEN, K, head="exact"), decoder.topk(HIDDEN, K, head=head)
    exact = reply.answer.exact
    np.testing.assert_array_equal(reply.ids[exact], wanted.ids[exact])
    np.testing.assert_array_equal(reply.logits[exact], wanted.logits[exact])
    assert reply.answer.rows_missing == spans(dead)
    if head != "screen" and 0 not in dead:  # whose rows are the longest
        assert exact.any()
        assert exact.all() == (dead == (2,))  # the shortest
    for first, rows in reply.answer.rows_missing:
        assert not ((reply.ids >= first) & (reply.ids < first + rows)).any()


@pytest.mark.parametrize("head", ["exact", "certified"])
def test_replicated_rows_of_missing_shards_are_answered(
    whole: LocalDecoder, replicated: Index, head: str
) -> None:
    """Few other rows are among the best."""
    wanted, inside = whole.topk(HIDDEN, K), 0
    for dead in range(3):
        decoder = ShardedDecoder(with_dead(replicated, (dead,)), missing="answer")
        reply = decoder.topk(HIDDEN, K, head=head)
        exact = reply.answer.exact
        np.testing.assert_array_equal(reply.ids[exact], wanted.ids[exact])
        np.testing.assert_array_equal(reply.logits[exact], wanted.logits[exact])
        assert exact.mean() > 0.5
        assert reply.answer.rows_missing == spans((dead,))
        first, rows = SPANS[dead]
        inside += int(((reply.ids >= first) & (reply.ids < first + rows))[exact].sum())
    assert inside > ROWS


def test_without_bounds_nothing_is_proven(whole: LocalDecoder, plain: Index) -> None:
    decoder = ShardedDecoder(with_dead(plain, (2,)), missing="answer")
    reply, wanted = decoder.topk(HIDDEN, K), whole.topk(HIDDEN, K)
    assert not reply.answer.exact.any()
    kept = (wanted.ids < SPANS[2][0]).all(axis=1)
    assert kept.any()
    np.testing.assert_array_equal(reply.ids[kept], wanted.ids[kept])


@pytest.mark.parametrize("dead", [(0,), (1,), (1, 2)])
@pytest.mark.parametrize("head", ["exact", "certified"])
@pytest.mark.parametrize("kind", ["bounded", "replicated"])
def test_all_other_answers_are_those_of_the_rest_and_none_is_proven(
    whole: LocalDecoder,
    dead: tuple[int, ...],
    kind: str,
    head: str,
    request: pytest.FixtureRequest,
) -> None:
    decoder = ShardedDecoder(with_dead(request.getfixturevalue(kind), dead), missing="answer")
    banned = [row for first, rows in spans(dead) for row in range(first, first + rows)]
    rest = calls(whole, constraints=Constraints(banned=banned), head=head)
    log_z = whole.topk(HIDDEN[:6], 1, normalizer="exact").answer.log_z
    replies = calls(decoder, head=head)
    constrained = decoder.topk(HIDDEN[:6], K, constraints=Constraints(banned=[5]), head=head)
    both = Constraints(banned=sorted({5, *banned}))
    replies.append(constrained)
    rest.append(whole.topk(HIDDEN[:6], K, constraints=both, head=head))
    for number, (reply, wanted) in enumerate(zip(replies, rest, strict=True)):
        answer = reply.answer
        assert answer.rows_missing == spans(dead)
        assert number == 0 or not answer.exact.any()
        assert answer.log_z_high is None or np.isinf(answer.log_z_high).all()
        if number < 3:
            assert (answer.log_z_low <= log_z).all()
        if number == 0:
            np.testing.assert_array_equal(answer.log_z, wanted.answer.log_z)
            if kind == "replicated":  # whose rows are among the best
                continue
        if hasattr(reply, "ids"):
            np.testing.assert_array_equal(reply.ids, wanted.ids)


def test_under_constraints_nothing_is_proven(bounded: Index) -> None:
    decoder = ShardedDecoder(with_dead(bounded, (2,)), missing="answer")
    allowed = Constraints(allowed=[1, 2, V - 1], biased=[V - 1], bias=[50.0])
    reply = decoder.topk(HIDDEN, 2, constraints=allowed)
    assert not reply.answer.exact.any()
    assert (reply.ids < 3).all()


def test_all_shards_answer_as_if_the_option_were_not_there(
    whole: LocalDecoder, bounded: Index
) -> None:
    replies = calls(ShardedDecoder(bounded, missing="answer"), head="exact")
    for reply, wanted in zip(replies, calls(whole, head="exact"), strict=True):
        assert reply.answer.rows_missing == ()
        if reply.answer.normalizer != "certified":
            np.testing.assert_array_equal(reply.answer.exact, wanted.answer.exact)
            for one, other in zip(reply[:-1], wanted[:-1], strict=True):
                np.testing.assert_array_equal(one, other)


def test_a_missing_shard_is_refused_where_that_is_the_option(bounded: Index) -> None:
    decoder = ShardedDecoder(with_dead(bounded, (1,)))
    with pytest.raises(Unavailable, match=r"rows 512 \.\. 1279 of the vocabulary cannot be asked"):
        decoder.topk(HIDDEN, K)
    with pytest.raises(InvalidRequest, match="'refuse' or 'answer'"):
        ShardedDecoder(bounded, missing="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("head", ["exact", "certified"])
def test_constraints_that_leave_none_but_missing_rows_are_refused(
    bounded: Index, head: Any
) -> None:
    decoder = ShardedDecoder(with_dead(bounded, (2,)), missing="answer")
    options: Any = {"head": head, "constraints": Constraints(banned=list(range(SPANS[2][0])))}
    with pytest.raises(ShardUnavailable):
        decoder.topk(HIDDEN, 1, **options)
    with pytest.raises(ShardUnavailable):
        decoder.sample(HIDDEN, 2, **options)
    with pytest.raises(ShardUnavailable):
        decoder.score(HIDDEN, [[5]] * ROWS, normalizer=head, **options)


def test_too_few_rows_are_refused_where_some_are_replicated(
    whole: LocalDecoder, replicated: Index
) -> None:
    assert isinstance(replicated.softmax, ShardedSoftmax)
    assert replicated.softmax.replicated is not None
    ids = replicated.softmax.replicated.ids
    kept = np.union1d(ids, np.arange(1280, V))
    banned = np.setdiff1d(np.arange(V), kept).tolist()
    decoder = ShardedDecoder(with_dead(replicated, (0, 1)), missing="answer")
    for head in ("exact", "certified"):
        options: Any = {"head": head}
        reply = decoder.topk(HIDDEN[:2], len(kept), **options)
        rest = whole.topk(
            HIDDEN[:2], len(kept), head="exact", constraints=Constraints(banned=banned)
        )
        np.testing.assert_array_equal(reply.ids, rest.ids)
        np.testing.assert_array_equal(reply.logits, rest.logits)
        with pytest.raises(ShardUnavailable):
            decoder.topk(HIDDEN[:2], len(kept) + 1, **options)


def test_too_few_rows_or_none_are_refused(bounded: Index) -> None:
    with pytest.raises(ShardUnavailable):
        ShardedDecoder(with_dead(bounded, (0, 1, 2)), missing="answer").topk(HIDDEN, K)
    decoder = ShardedDecoder(with_dead(bounded, (0, 1)), missing="answer")
    assert decoder.topk(HIDDEN[:1], V - 1280).ids.shape == (1, V - 1280)
    with pytest.raises(ShardUnavailable):
        decoder.topk(HIDDEN, V - 1279)
